"""Runs the tool calls of an answer, and says to the model what came of each.

Enter: an answer with calls. Leave: one tool message a call, in their order, and a tool span each.
Invariants: whatever a call is (a tool that there is not, arguments that are no JSON or do not fit,
a tool that raises, hangs or returns 20 MB) the model gets a bounded answer that names what is
wrong; only infrastructure and an end of the episode pass through.
"""

import asyncio
import difflib
import time
import traceback
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from environments.harnesses.asking import Ended, Said
from environments.harnesses.calling import OutOfTime, bounded
from environments.harnesses.contract import Episode, EpisodeFailed, Tool
from environments.runtimes.contract import RuntimeFailure
from flywheel.errors import EngineError, ProjectError
from flywheel.records import Message, Span, ToolCall, ToolResult

AT_ONCE = 16
"""Calls of one answer that run side by side."""
THROUGH = (EpisodeFailed, RuntimeFailure, EngineError, Ended)
_KEPT = 2000
"""Characters of a traceback that a span keeps: the last ones."""
_SCHEMAS = 1024
"""That are kept ready; every problem may have tools of its own."""
_FAULTS = 5
"""Faults of one call's arguments that the model is told."""


class WrongCall(Exception):
    """What the model did wrong."""


class _Came(NamedTuple):
    text: str
    is_error: bool = False
    trace: str | None = None


class Toolbox:
    """The tools of one episode.

    Raises:
        ProjectError: what the environment gave is no list of tools.
    """

    def __init__(self, episode: Episode, tools: Sequence[Tool], *, parallel: bool = True) -> None:
        _check(episode.environment.name, tools)
        self.episode, self.parallel = episode, parallel
        self.tools = {tool.name: tool for tool in tools}
        self.schemas: tuple[dict[str, Any], ...] = tuple(map(schema, tools))
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def answer(self, said: Said) -> list[Message]:
        """The tool messages that answer the calls of `said`."""
        calls = said.calls
        if len(calls) == 1 or not self.parallel:
            return [await self._run(call, said.span) for call in calls]
        running = [asyncio.create_task(self._run(call, said.span)) for call in calls]
        try:
            return await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise

    async def _run(self, call: ToolCall, parent: str) -> Message:
        async with self._turn:
            start = time.time_ns()
            came = await self._came(call)
        result = ToolResult(
            content=shortened(came.text, self.episode.budget.tool_output),
            id=call.id,
            name=call.name,
            is_error=came.is_error,
        )
        span = Span(
            id=f"tool-{len(self.episode.spans)}",
            kind="tool",
            name=call.name,
            parents=(parent,),
            start=start,
            end=time.time_ns(),
            error=came.text[:500] if came.is_error else None,
            tool=call,
            result=result,
            attributes={"traceback": came.trace} if came.trace else {},
        )
        self.episode.spans.append(span)
        return Message(role="tool", parts=(result,))

    async def _came(self, call: ToolCall) -> _Came:
        seconds = self.episode.budget.tool_s
        try:
            tool, arguments = self._understood(call)
            return _Came(as_text(await bounded(tool.call, arguments, seconds, self.episode.alone)))
        except THROUGH:
            raise
        except WrongCall as wrong:
            return _Came(f"Error: {wrong}", True)
        except OutOfTime as error:
            return _Came(f"Error: {call.name} {error}", True)
        except Exception as error:
            told = f"Error: {type(error).__name__}: {error}"
            return _Came(told, True, traceback.format_exc()[-_KEPT:])

    def _understood(self, call: ToolCall) -> tuple[Tool, dict[str, Any]]:
        tool = self.tools.get(call.name)
        if tool is None:
            raise WrongCall(_unknown(call.name, list(self.tools)))
        try:
            arguments = msgspec.json.decode(call.arguments) if call.arguments.strip() else {}
        except (msgspec.DecodeError, UnicodeError) as error:
            raise WrongCall(f"the arguments of {call.name} are no JSON: {error}") from error
        if not isinstance(arguments, dict):
            kind = type(arguments).__name__
            raise WrongCall(f"the arguments of {call.name} must be a JSON object, not {kind}")
        if tool.checks:
            return tool, arguments
        faults = [
            f"{'.'.join(str(step) for step in fault.absolute_path) or 'arguments'}: {fault.message}"
            for fault, _ in zip(_validator(_key(tool)).iter_errors(arguments), range(_FAULTS),
                                strict=False)
        ]  # fmt: skip
        if faults:
            raise WrongCall(f"the arguments of {call.name} do not fit: " + "; ".join(faults)[:1500])
        return tool, arguments


def schema(tool: Tool) -> dict[str, Any]:
    """A tool as the protocol has it."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def as_text(value: Any) -> str:
    """What a tool returned: text as it is, anything else as JSON.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, UnicodeEncodeError, OverflowError) as error:
        raise TypeError(f"the tool returned what is neither text nor JSON: {error}") from error


def shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: the first {limit} of {len(text)} characters]"


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
    return f"there is no tool {name!r}; {hint}"


def _key(tool: Tool) -> bytes:
    return msgspec.json.encode(tool.parameters)


@lru_cache(_SCHEMAS)
def _validator(parameters: bytes) -> Any:
    """References lead nowhere but into the schema itself: by default they would be fetched."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    found = msgspec.json.decode(parameters)
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found, registry=Registry())


def _check(name: str, tools: Any) -> None:
    form = "a list of Tool(name, description, JSON schema, call)"
    if not isinstance(tools, list | tuple):
        raise ProjectError(f"{name}.tools must return {form}, not {type(tools).__name__}")
    for number, tool in enumerate(tools):
        said = f"{name}.tools must return {form}; number {number + 1}"
        if not isinstance(tool, Tool):
            raise ProjectError(f"{said} is of type {type(tool).__name__}")
        if not (isinstance(tool.name, str) and isinstance(tool.description, str)):
            raise ProjectError(f"{said} has a name or a description that is no text")
        if not isinstance(tool.parameters, dict):
            raise ProjectError(f"{said} ({tool.name}) has a schema that is no dict")
        if not callable(tool.call):
            raise ProjectError(f"{said} ({tool.name}) has a call that cannot be called")
