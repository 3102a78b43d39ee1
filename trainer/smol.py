"""SmolLM2's chat template as a renderer on the `renderers` library's interface.

In: messages as that library has them (OpenAI's dictionaries). Out: token ids with exact masks.
Invariants: the ids equal those of the chat template; what a model sampled is never tokenised
together with what surrounds it, so a longer conversation always extends a shorter one; text never
becomes a control token. docs/decisions/renderers.md lists where this departs from the template.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
from renderers.base import (
    Message,
    ParsedResponse,
    ParsedToolCall,
    RenderedTokens,
    ToolCallParseStatus,
    ToolSpec,
    extract_message_tool_names,
    reject_assistant_in_extension,
    trim_to_turn_close,
)
from renderers.configs import BaseRendererConfig

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TOOLS = (
    "You are an expert in composing functions. You are given a question and a set of possible "
    "functions. Based on the question, you will need to make one or more function/tool calls to "
    "achieve the purpose. If none of the functions can be used, point it out and refuse to answer. "
    "If the given question lacks the parameters required by the function, also point it out.\n\n"
    "You have access to the following tools:\n<tools>{tools}</tools>\n\n"
    "The output MUST strictly adhere to the following format, and NO other text MUST be included.\n"
    "The example format is as follows. Please make sure the parameter type is correct. If no "
    "function call is needed, please make the tool calls an empty list '[]'.\n"
    '<tool_call>[\n{"name": "func_name1", "arguments": {"argument1": "value1", "argument2": '
    '"value2"}},\n... (more tool calls as required)\n]</tool_call>'
)
"""The words SmolLM2's authors trained function calling with; the template itself ignores tools."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class SmolRendererConfig(BaseRendererConfig):  # type: ignore[misc]
    name: str = "smollm2"


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass
class _Stream:
    """The ids so far and what each one is; all four are parallel."""

    ids: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    content: list[bool] = field(default_factory=list)

    def add(self, ids: list[int], owner: int, *, sampled: bool, content: bool) -> None:
        self.ids += ids
        self.owner += [owner] * len(ids)
        self.sampled += [sampled] * len(ids)
        self.content += [content] * len(ids)


class SmolRenderer:
    """Implements `renderers.base.Renderer`."""

    config_class = SmolRendererConfig
    is_prefix_stable = True
    supports_tools = True

    def __init__(self, tokenizer: Any, config: SmolRendererConfig | None = None) -> None:
        from tokenizers import Tokenizer

        self.config = config or SmolRendererConfig()
        # A copy of its own, so that switching off control tokens in text touches nobody else.
        self._text = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._text.encode_special_tokens = True
        self._text.no_padding()
        self._text.no_truncation()
        self._start = self._control("<|im_start|>")
        self._end = self._control("<|im_end|>")
        self._newline = self._encode("\n")

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        if not messages:
            raise ValueError("no messages to render")
        stream = _Stream()
        self._preamble(stream, messages, tools)
        for index, message in enumerate(messages):
            if tools and index == 0 and message["role"] == "system":
                continue
            self._turn(stream, message["role"], _body(message), index)
        if add_generation_prompt:
            self._generation_prompt(stream)
        return _rendered(stream, messages)

    def render_ids(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        rendered = self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return list(rendered.token_ids)

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[ToolSpec] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """Text and calls of a completion; calls are looked for only where tools were offered."""
        if self._end in token_ids:
            token_ids = token_ids[: token_ids.index(self._end)]
        text = self._text.decode(token_ids, skip_special_tokens=False)
        if not tools or _OPEN not in text:
            return ParsedResponse(content=text)
        outside, calls = _split_calls(text)
        return ParsedResponse(content=outside, tool_calls=calls)

    def get_stop_token_ids(self) -> list[int]:
        return [self._end]

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
    ) -> RenderedTokens | None:
        """The conversation so far, token by token as it was, and the new messages after it.

        None where it cannot be: nothing before, nothing new, or a new assistant message, whose
        sampled tokens are not known.
        """
        if not previous_prompt_ids or not new_messages:
            return None
        if reject_assistant_in_extension(new_messages):
            return None
        before = trim_to_turn_close(
            previous_prompt_ids,
            previous_completion_ids,
            {self._end},
            synthesize_close=self._end,
        )
        assert before is not None
        stream = _Stream()
        stream.add(before + self._newline, -1, sampled=False, content=False)
        for index, message in enumerate(new_messages):
            self._turn(stream, message["role"], _body(message), index)
        self._generation_prompt(stream)
        return _rendered(stream, new_messages)

    def _preamble(
        self, stream: _Stream, messages: list[Message], tools: list[ToolSpec] | None
    ) -> None:
        has_system = messages[0]["role"] == "system"
        if tools:
            block = TOOLS.replace("{tools}", json.dumps(tools, ensure_ascii=False))
            own = _body(messages[0]) if has_system else ""
            self._turn(stream, "system", f"{own}\n\n{block}" if own else block, -1)
        elif not has_system:
            self._turn(stream, "system", DEFAULT_SYSTEM, -1)

    def _turn(self, stream: _Stream, role: str, body: str, owner: int) -> None:
        stream.add([self._start], owner, sampled=False, content=False)
        header = self._encode(f"{role}\n")
        spoken = role == "assistant" and owner >= 0
        if spoken:
            stream.add(header, owner, sampled=False, content=False)
            stream.add(self._encode(body), owner, sampled=True, content=True)
        else:
            whole = self._encode(f"{role}\n{body}")
            stream.add(whole[: len(header)], owner, sampled=False, content=False)
            stream.add(whole[len(header) :], owner, sampled=False, content=owner >= 0)
        stream.add([self._end], owner, sampled=spoken, content=spoken)
        stream.add(self._newline, owner, sampled=False, content=False)

    def _generation_prompt(self, stream: _Stream) -> None:
        ids = [self._start, *self._encode("assistant\n")]
        stream.add(ids, -1, sampled=False, content=False)

    def _encode(self, text: str) -> list[int]:
        return list(self._text.encode(text, add_special_tokens=False).ids) if text else []

    def _control(self, text: str) -> int:
        number = self._text.token_to_id(text)
        if number is None:
            raise ValueError(f"the tokenizer has no {text} token")
        return int(number)


def _rendered(stream: _Stream, messages: list[Message]) -> RenderedTokens:
    return RenderedTokens(
        token_ids=stream.ids,
        message_indices=stream.owner,
        sampled_mask=stream.sampled,
        is_content=stream.content,
        message_roles=[message["role"] for message in messages],
        message_tool_names=extract_message_tool_names(messages),
    )


def _body(message: Message) -> str:
    """A message's text and, after it, its calls in the form that the model writes them."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls") or []
    if not calls:
        return content
    written = ", ".join(
        f'{{"name": {json.dumps(call["function"]["name"], ensure_ascii=False)}, '
        f'"arguments": {_arguments(call["function"]["arguments"])}}}'
        for call in calls
    )
    return f"{content}{_OPEN}[{written}]{_CLOSE}"


def _arguments(arguments: Any) -> str:
    """As the model wrote them where that is JSON, else the broken text as a JSON string."""
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    try:
        msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return json.dumps(arguments, ensure_ascii=False)
    return arguments


def _split_calls(text: str) -> tuple[str, list[ParsedToolCall]]:
    """Text outside of the call blocks, and every call tried; a block holds one call or a list."""
    outside, calls, rest = "", list[ParsedToolCall](), text
    while _OPEN in rest:
        before, _, rest = rest.partition(_OPEN)
        block, closed, rest = rest.partition(_CLOSE)
        outside += before
        calls += _calls(block) if closed else [_broken(block, ToolCallParseStatus.UNCLOSED_BLOCK)]
    return outside + rest, calls


def _calls(block: str) -> list[ParsedToolCall]:
    try:
        found = msgspec.json.decode(block, type=list[_Call] | _Call)
    except msgspec.ValidationError:
        return [_broken(block, ToolCallParseStatus.MISSING_NAME)]
    except (msgspec.DecodeError, RecursionError):
        return [_broken(block, ToolCallParseStatus.INVALID_JSON)]
    return [
        ParsedToolCall(raw=block, name=call.name, arguments=bytes(call.arguments).decode())
        for call in (found if isinstance(found, list) else [found])
    ]


def _broken(block: str, status: ToolCallParseStatus) -> ParsedToolCall:
    return ParsedToolCall(raw=block, status=status)
