"""What was done at the desk: the calls of a trace, played again on the database they began with.

Enter: a trace, or a problem's needed actions. Leave: steps with what each came to, and the final
database. Invariant: only what the trace holds counts, so a recorded conversation of production is
judged as a rollout is.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from environments.harnesses.user_server import NAME as TO_USER
from environments.shipped.desk.domain import Call, Database, Domain, NotDone
from flywheel.records import Message, ToolCall, ToolResult, Trace, model_spans, say


class Step(NamedTuple):
    span: str
    """The id of the model call that made it."""
    call: Call
    error: str | None
    """What the tool said went wrong. None = it was done."""
    forbidden: str | None
    """Why the policy forbids it."""


class Made(NamedTuple):
    span: str
    call: Call
    failed: str | None = None
    """What is recorded to have gone wrong; such a call is not played."""


class Played(NamedTuple):
    steps: list[Step]
    database: Database


def play(domain: Domain, start: Database, calls: Iterable[Made]) -> Played:
    database = copy.deepcopy(start)
    steps: list[Step] = []
    done: list[Call] = []
    for span, call, failed in calls:
        action = domain.actions.get(call.name)
        forbidden = None
        if action is not None and action.writes:
            forbidden = domain.forbidden(database, call, done)
        error = failed or attempt(domain, database, call)[1]
        steps.append(Step(span, call, error, forbidden if error is None else None))
        if error is None:
            done.append(call)
    return Played(steps, database)


def attempt(domain: Domain, database: Database, call: Call) -> tuple[Any, str | None]:
    """What an action says, or why it was not done."""
    action = domain.actions.get(call.name)
    if action is None:
        return None, f"there is no action {call.name}"
    try:
        return action.run(database, **call.arguments), None
    except NotDone as error:
        return None, str(error)
    except (TypeError, AttributeError, KeyError, ValueError) as error:  # arguments of wrong kinds
        return None, f"{type(error).__name__}: {error}"


def made(trace: Trace) -> list[Made]:
    """The tool calls of a trace in order: as they were run, where that is recorded, else as the
    model wrote them. What is no JSON object was never run; words to the user are no action."""
    run = [span for span in trace.spans if span.tool is not None]
    if run:
        run.sort(key=lambda span: (span.start or 0, len(span.id), span.id))
        found = [_made((*span.parents, span.id)[0], span.tool, span.result) for span in run]
    else:
        found = [
            _made(span.id, call, None)
            for span in model_spans(trace)
            if span.call and span.call.choices
            for call in span.call.choices[0].message.tool_calls
        ]
    return [one for one in found if one is not None]


def _made(span: str, tool: ToolCall | None, result: ToolResult | None) -> Made | None:
    try:
        arguments = json.loads(tool.arguments or "{}") if tool else None
    except ValueError:
        return None
    if tool is None or tool.name == TO_USER or not isinstance(arguments, dict):
        return None
    failed = result.content if result and result.is_error else None
    return Made(span, Call(tool.name, arguments), failed)


def start_of(domain: Domain, base: Database, initial: Mapping[str, Any]) -> Database:
    """The database that a problem begins with: the desk's, with what the problem adds, and what was
    done in it before."""
    database = copy.deepcopy(base)
    added = (initial.get("initialization_data") or {}).get("agent_data") or {}
    _merge(database, added)
    for action in initial.get("initialization_actions") or ():
        if action.get("env_type", "assistant") == "assistant":
            attempt(domain, database, Call(action["func_name"], dict(action["arguments"])))
    for message in initial.get("message_history") or ():
        for call in message.get("tool_calls") or ():
            attempt(domain, database, Call(call["name"], dict(call["arguments"])))
    return database


def _merge(into: dict[str, Any], what: Mapping[str, Any]) -> None:
    for key, value in what.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def acted(domain: Domain, start: Database, calls: Sequence[Call], last: str) -> list[Message]:
    """A model that makes these calls one by one, with their results, and then says `last`."""
    database, said = copy.deepcopy(start), []
    for number, call in enumerate(calls):
        result, error = attempt(domain, database, call)
        id = f"call_{number}"
        asked = ToolCall(name=call.name, arguments=json.dumps(call.arguments), id=id)
        came = ToolResult(
            content=error or json.dumps(result), id=id, name=call.name, is_error=error is not None
        )
        said.append(Message(role="assistant", parts=(asked,)))
        said.append(Message(role="tool", parts=(came,)))
    return [*said, say("assistant", last)]
