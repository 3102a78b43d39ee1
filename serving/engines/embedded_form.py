"""Answers of a given form: JSON, JSON of a schema, calls of the tools that are offered.

Enter: what a request asks for. Leaves: for each of its choices a `Form` that forbids, before each
draw, the tokens after which the answer could not become of that form. So it is, unless it is cut at
its longest. llguidance has the grammars (docs/decisions/llguidance.md).
"""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from serving.engines.embedded_requests import ChatAsked
from serving.refusal import invalid
from trainer.render import Rendering

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One spelling of each value: a small model that may write spaces writes them to its end."""
_LIST, _ONE = ("<tool_call>", "[", "]", "</tool_call>"), ("<tool_call>", "\n", "\n", "</tool_call>")
"""How models write their calls: all in one list, or one in each block."""


class Form:
    """Of one choice; `forbid` before each draw, `take` after it."""

    def __init__(self, tokenizer: Any, grammar: str) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(tokenizer, grammar)

    def forbid(self, logits: torch.Tensor) -> None:
        """Sets what may not come to -inf, in place; [vocabulary]."""
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        allowed = (bits[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        logits[allowed.flatten()[: len(logits)] == 0] = -torch.inf

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)


class Forms:
    """What answers of one model can be held to."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering

    def of(self, asked: ChatAsked) -> Callable[[], Form] | None:
        """What makes a form for each choice; None = whatever comes.

        Raises:
            ApiError: 400: no such form, or none that this model can be held to.
        """
        grammar = self._called(asked) if _forced(asked) else _worded(asked)
        if grammar is None:
            return None
        from llguidance import LLMatcher

        tokenizer, field = self._tokenizer, "tool_choice" if _forced(asked) else "response_format"
        if (why := LLMatcher.validate_grammar(grammar, tokenizer)) != "":
            raise invalid(f"{field}: no answer can be held to this: {why[:500]}", field)
        return lambda: Form(tokenizer, grammar)

    @cached_property
    def _tokenizer(self) -> Any:
        from llguidance import LLTokenizer

        backend = self._rendering.tokenizer.backend_tokenizer
        return LLTokenizer(backend.to_str(), eos_token=sorted(self._rendering.stop_ids))

    @cached_property
    def _spelling(self) -> tuple[str, str, str, str] | None:
        """How the model's own parser reads calls; None = in no way that we can write."""
        tool = {"type": "function", "function": {"name": "x", "parameters": {"type": "object"}}}
        for way in (_LIST, _ONE):
            begin, before, after, end = way
            said = f'{begin}{before}{{"name": "x", "arguments": {{}}}}{after}{end}'
            ids = self._rendering.tokenizer.encode(said, add_special_tokens=False)
            if self._rendering.parse(ids, [tool]).message.tool_calls:
                return way
        return None

    def _called(self, asked: ChatAsked) -> str:
        from llguidance import LLMatcher

        way = self._spelling
        if way is None:
            raise invalid(
                "the embedded engine cannot hold this model to a tool call: leave tool_choice out, "
                'or serve with vLLM ([serving] engine = "vllm")',
                "tool_choice",
            )
        begin, before, after, end = (self._piece(one) for one in way)
        call = json.dumps({"x-guidance": _SPACING, "anyOf": [*map(_call, _chosen(asked))]})
        many = asked.tool_choice == "required" and asked.parallel_tool_calls is not False
        several = ' (", " call)*' if many and way is _LIST else ""
        block = f"{begin} {before} call{several} {after} {end}"
        start = f"({block})+" if many and way is _ONE else block
        return str(LLMatcher.grammar_from_lark(f"start: {start}\ncall: %json {call}\n"))

    def _piece(self, text: str) -> str:
        """As a grammar has it: by itself where it is one of the model's special tokens."""
        special = text in self._rendering.tokenizer.all_special_tokens
        return text if special else json.dumps(text)


def _forced(asked: ChatAsked) -> bool:
    return asked.tool_choice not in (None, "auto", "none")


def _worded(asked: ChatAsked) -> str | None:
    from llguidance import LLMatcher

    form = asked.response_format
    kind = form.get("type") if isinstance(form, dict) else form
    if kind in (None, "text"):
        return None
    if asked.tools:
        raise invalid("the embedded engine takes response_format or tools, not both", "tools")
    schema: Any = {"type": "object"}
    if kind == "json_schema":
        named = form.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
    elif kind != "json_object":
        raise invalid("response_format is text, json_object or json_schema", "response_format")
    if not isinstance(schema, dict):
        raise invalid("response_format.json_schema.schema must be an object", "response_format")
    try:
        spelled = json.dumps({**schema, "x-guidance": _SPACING})
        return str(LLMatcher.grammar_from_json_schema(spelled))
    except ValueError as error:
        raise invalid(f"response_format: {error}", "response_format") from error


def _chosen(asked: ChatAsked) -> list[dict[str, Any]]:
    """The tools of which one must be called."""
    choice, tools = asked.tool_choice, asked.tools or []
    offered = [one["function"] for one in tools if isinstance(one.get("function"), dict)]
    if choice == "required":
        found = offered
    else:
        named = choice.get("function") if isinstance(choice, dict) else None
        name = named.get("name") if isinstance(named, dict) else None
        found = [one for one in offered if one.get("name") == name]
    if not found or not all(isinstance(one.get("name"), str) for one in found):
        raise invalid("tool_choice names no tool that is offered", "tool_choice")
    return found


def _call(function: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": function.get("parameters") or {"type": "object"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
