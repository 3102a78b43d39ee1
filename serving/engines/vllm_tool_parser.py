"""SmolLM2's tool calls for vLLM: a plugin that vLLM's own process loads from this file.

`<tool_call>[{"name": …, "arguments": …}]</tool_call>`, one call or a list, in one block or several,
as trainer/smol.py reads and writes them; what cannot be read stays text. vLLM's own parsers know
one call a block. Runs under vLLM's Python; vLLM is imported by name only.
"""

import importlib
import json
from typing import Any

NAME = "flywheel_smollm2"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_parsers = importlib.import_module("vllm.tool_parsers.abstract_tool_parser")
_words = importlib.import_module("vllm.entrypoints.generate.base.protocol")
_ids = importlib.import_module("vllm.renderers.chat_utils")


class SmolToolParser(_parsers.ToolParser):  # type: ignore[misc, name-defined]
    """One object reads one answer."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._said = 0
        """Characters of the answer that the client has, or has as calls."""

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        outside, calls = "", []
        rest = model_output
        while _OPEN in rest:
            before, _, rest = rest.partition(_OPEN)
            block, closed, rest = rest.partition(_CLOSE)
            found = _read(block) if closed else None
            if found is None:
                return _words.ExtractedToolCallInformation(
                    tools_called=False, tool_calls=[], content=model_output
                )
            outside += before
            calls += found
        made = [
            _words.ToolCall(function=_words.FunctionCall(name=name, arguments=arguments))
            for name, arguments in calls
        ]
        return _words.ExtractedToolCallInformation(
            tools_called=bool(made), tool_calls=made, content=(outside + rest) or None
        )

    def extract_tool_calls_streaming(
        self, previous_text: str, current_text: str, *more: Any, **named: Any
    ) -> Any:
        """Text at once, a block's calls when it closes; an open block is held back."""
        said, calls = "", []
        while True:
            rest = current_text[self._said :]
            start = rest.find(_OPEN)
            if start < 0:
                free = len(rest) - _begun(rest)
                said += rest[:free]
                self._said += free
                break
            said += rest[:start]
            self._said += start
            end = rest.find(_CLOSE)
            if end < 0:
                break
            whole = end + len(_CLOSE)
            found = _read(rest[start + len(_OPEN) : end])
            if found is None:
                said += rest[start:whole]
            calls += found or []
            self._said += whole - start
        deltas = [self._delta(name, arguments) for name, arguments in calls]
        if not said and not deltas:
            return None
        return _words.DeltaMessage(content=said or None, tool_calls=deltas)

    def _delta(self, name: str, arguments: str) -> Any:
        self.current_tool_id += 1
        self.prev_tool_call_arr.append({"name": name, "arguments": arguments})
        self.streamed_args_for_tool.append(arguments)
        return _words.DeltaToolCall(
            index=self.current_tool_id,
            type="function",
            id=_ids.make_tool_call_id(),
            function=_words.DeltaFunctionCall(name=name, arguments=arguments),
        )


def _read(block: str) -> list[tuple[str, str]] | None:
    """Name and arguments of each call; None = these are none."""
    try:
        found = json.loads(block)
        calls = found if isinstance(found, list) else [found]
        return [
            (str(call["name"]), json.dumps(call.get("arguments", {}), ensure_ascii=False))
            for call in calls
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _begun(text: str) -> int:
    """Characters at the end of `text` that may become the opening of a block."""
    return next((n for n in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:n])), 0)


importlib.import_module("vllm.tool_parsers").ToolParserManager.register_module(
    NAME, module=SmolToolParser
)
