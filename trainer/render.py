"""The only place that turns messages into tokens and tokens into messages.

In: our messages, or sampled ids. Out: ids, training masks, messages. The work is done by a renderer
of the `renderers` library, or by one of ours on the same interface where the library has none.
Invariant: a sample's ids are the prompt's ids, then the answer's, the stop token last; exactly the
answer and its stop token are trained on.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from flywheel.errors import BadRecord, MissingPart
from flywheel.ids import digest
from flywheel.records import Message, Part, Reasoning, Refusal, Text, ToolCall, ToolResult


class Answer(NamedTuple):
    message: Message
    finish_reason: Literal["stop", "tool_calls", "length"]
    """length = the completion does not end with a stop token."""


class Rendering:
    """A tokenizer and the renderer of its chat template; tools are OpenAI's schemas."""

    def __init__(self, tokenizer: Any, renderer: Any) -> None:
        self.tokenizer = tokenizer
        self.renderer = renderer

    def render_prompt(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """With the header of the answer to come at its end.

        Raises:
            BadRecord: no messages, or one that cannot be said in text (an image, a cut field).
        """
        return self._ids(messages, tools, generation_prompt=True)

    def render_sample(
        self,
        messages: Sequence[Message],
        completion: Message,
        tools: Sequence[dict[str, Any]] = (),
    ) -> tuple[list[int], list[bool]]:
        """The ids up to the answer's stop token, and which of them are trained on.

        Raises:
            BadRecord: not a training target: a role other than assistant, a template whose
                rendering of the whole does not begin with the prompt, or as in `render_prompt`.
        """
        from renderers.base import build_training_sample

        if completion.role != "assistant":
            raise BadRecord("only an assistant's message is trained on", field="completion.role")
        prompt = self.render_prompt(messages, tools)
        whole = [_plain(message, index) for index, message in enumerate((*messages, completion))]
        sample = build_training_sample(
            self.renderer,
            whole,
            tools=_schemas(tools),
            message_loss_mask=[False] * len(messages) + [True],
            ensure_final_stop=True,
        )
        ids, mask = list(sample.token_ids), list(sample.loss_mask)
        end = max((index for index, trained in enumerate(mask) if trained), default=-1) + 1
        exact = ids[: len(prompt)] == prompt and all(mask[len(prompt) : end])
        if not exact or any(mask[: len(prompt)]) or end <= len(prompt):
            raise BadRecord("the chat template does not keep the prompt as the answer's beginning")
        if ids[end - 1] not in self.stop_ids:
            raise BadRecord("the chat template does not end an answer with a stop token")
        return ids[:end], mask[:end]

    def bridge(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        *,
        prompt_length: int | None = None,
    ) -> list[int] | None:
        """The next turn's prompt, whose beginning is `previous_ids` as they were sampled.

        `prompt_length` says how many of them were the last call's prompt. None = it cannot be
        done: the caller starts a new branch from re-rendered messages.
        """
        rendered = self._bridged(previous_ids, new_messages, tools, prompt_length)
        return None if rendered is None else list(rendered.token_ids)

    def heard(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        *,
        prompt_length: int | None = None,
    ) -> tuple[list[int], list[bool]] | None:
        """What `bridge` gives, and which of it is what the new messages say: neither their headers
        and ends nor anything before them. None = it cannot be done, or the renderer does not tell.
        """
        rendered = self._bridged(previous_ids, new_messages, tools, prompt_length)
        if rendered is None or not rendered.is_content:
            return None
        ids, content = list(rendered.token_ids), list(rendered.is_content)
        return ids, [False] * len(previous_ids) + content[len(previous_ids) :]

    def after(self, messages: Sequence[Message], ids: Sequence[int]) -> list[int]:
        """A rendered conversation with these messages before it, and one BOS.

        Raises:
            BadRecord: as in `render_prompt`.
        """
        said = self._ids(messages, (), generation_prompt=False)
        first = self.tokenizer.bos_token_id
        twice = self._ids([*messages, *messages], (), generation_prompt=False).count(first)
        # A BOS that every message begins with is that template's header, and stays.
        once = twice == said.count(first) == 1 and list(ids[:1]) == said[:1] == [first]
        return said + list(ids[once:])

    def parse(self, completion_ids: Sequence[int], tools: Sequence[dict[str, Any]] = ()) -> Answer:
        """What was sampled, as a message. Calls are looked for only where tools were offered; one
        that cannot be parsed stays text."""
        from renderers.base import ToolCallParseStatus

        ended = any(token in self.stop_ids for token in completion_ids)
        parsed = self.renderer.parse_response(list(completion_ids), tools=_schemas(tools))
        good = all(call.status == ToolCallParseStatus.OK for call in parsed.tool_calls)
        if parsed.tool_calls and not good:
            parsed = self.renderer.parse_response(list(completion_ids), tools=None)
        parts: list[Part] = []
        if parsed.reasoning_content:
            parts.append(Reasoning(text=parsed.reasoning_content))
        calls = parsed.tool_calls if good else []
        if parsed.content or not calls:
            parts.append(Text(text=parsed.content))
        parts += [
            ToolCall(name=call.name or "", arguments=_text_of(call.arguments), id=call.id)
            for call in calls
        ]
        finish: Literal["stop", "tool_calls", "length"] = "tool_calls" if calls else "stop"
        return Answer(Message(role="assistant", parts=tuple(parts)), finish if ended else "length")

    def decode(self, ids: Sequence[int]) -> str:
        """Text with control tokens spelled out; an unfinished character is U+FFFD."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(self.renderer.get_stop_token_ids())

    @cached_property
    def template_digest(self) -> str:
        """Changes with the chat template and with how tools are put into words."""
        renderer = type(self.renderer)
        probe = {"type": "function", "function": {"name": "probe", "parameters": {}}}
        tools = self._ids([Message(role="user")], [probe], generation_prompt=True)
        return digest(self.tokenizer.chat_template, renderer.__qualname__, tools)

    @cached_property
    def tokenizer_digest(self) -> str:
        state = json.loads(self.tokenizer.backend_tokenizer.to_str())
        return digest({**state, "padding": None, "truncation": None})

    def _bridged(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        prompt_length: int | None,
    ) -> Any:
        """The library's rendering of the next prompt, or None."""
        split = len(previous_ids) - 1 if prompt_length is None else prompt_length
        return self.renderer.bridge_to_next_turn(
            list(previous_ids[:split]),
            list(previous_ids[split:]),
            [_plain(message, index) for index, message in enumerate(new_messages)],
            tools=_schemas(tools),
        )

    def _ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        *,
        generation_prompt: bool,
    ) -> list[int]:
        if not messages:
            raise BadRecord("no messages to render", field="messages")
        plain = [_plain(message, index) for index, message in enumerate(messages)]
        return list(
            self.renderer.render_ids(
                plain, tools=_schemas(tools), add_generation_prompt=generation_prompt
            )
        )


def renderer_for(tokenizer: Any) -> Rendering:
    """The library's renderer for models that it knows by name, ours for SmolLM2's template.

    Raises:
        MissingPart: neither; the library's default has no content mask and no bridge.
    """
    from renderers.base import MODEL_RENDERER_MAP, create_renderer

    from trainer.smol import TEMPLATE, SmolRenderer

    template = tokenizer.chat_template
    if template is not None and template.strip() == TEMPLATE:
        return Rendering(tokenizer, SmolRenderer(tokenizer))
    if tokenizer.name_or_path in MODEL_RENDERER_MAP:
        return Rendering(tokenizer, create_renderer(tokenizer))
    raise MissingPart(
        f"{tokenizer.name_or_path}: no renderer for this chat template. It is not SmolLM2's, and "
        "the renderers library knows no model of this name; its default would train on role "
        "headers. Write one beside trainer/smol.py and name it in renderer_for"
    )


def _plain(message: Message, index: int) -> dict[str, Any]:
    """Our message in the library's form; reasoning is left out, as the templates do of history."""
    said: list[str] = []
    calls: list[dict[str, Any]] = []
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    for part in message.parts:
        if isinstance(part, Text | Refusal):
            said.append(_whole(part.text))
        elif isinstance(part, ToolResult):
            said.append(_whole(part.content))
            plain |= {"tool_call_id": part.id} if part.id else {}
        elif isinstance(part, ToolCall):
            function = {"name": _whole(part.name), "arguments": _whole(part.arguments)}
            calls.append({"type": "function", "id": part.id or "", "function": function})
        elif not isinstance(part, Reasoning):
            kind = type(part).__struct_config__.tag
            raise BadRecord(f"{kind} cannot be rendered as text", field=f"messages[{index}]")
    plain["content"] = "".join(said)
    if calls:
        plain["tool_calls"] = calls
    if message.name:
        plain["name"] = message.name
    return plain


def _schemas(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    try:
        cleaned: list[dict[str, Any]] = json.loads(
            _whole(json.dumps(list(tools), ensure_ascii=False))
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecord(f"tools are not JSON: {error}", field="tools") from error
    return cleaned


def _whole(text: str) -> str:
    """Half of a split character becomes U+FFFD: no tokenizer takes it."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text_of(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
