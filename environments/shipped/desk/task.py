"""A task of tau2's format, as it lies in a problem's hidden answer, and what it says.

Enter: a problem whose answer is {"scenario", "initial_state", "criteria"}. Leave: its parts.
Invariant: a part that a task leaves out is empty; a task without criteria is not graded.
"""

import json
from collections.abc import Mapping
from typing import Any

from environments.harnesses.user_server import NAME as TO_USER
from environments.marks import Ungraded
from environments.shipped.desk.domain import Call
from environments.shipped.desk.replay import Made
from flywheel.records import (
    Message,
    Problem,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    model_spans,
)


def scenario(problem: Problem) -> Mapping[str, Any]:
    return _answer(problem).get("scenario") or {}


def initial(problem: Problem) -> Mapping[str, Any]:
    return _answer(problem).get("initial_state") or {}


def criteria(problem: Problem) -> Mapping[str, Any]:
    """
    Raises:
        Ungraded: it has none.
    """
    found = _answer(problem).get("criteria")
    if not isinstance(found, dict):
        raise Ungraded("the task has no evaluation_criteria")
    return found


def listed(problem: Problem, name: str) -> list[Any]:
    """A list of the criteria: actions, communicate_info, env_assertions, and `traps`, which only
    our own tasks have: writes that the user's words tempt to."""
    return list(criteria(problem).get(name) or ())


def needed(problem: Problem) -> list[Made]:
    """The actions that the task needs, as if they had been made."""
    actions = listed(problem, "actions")
    return [Made("needed", Call(one["name"], dict(one["arguments"]))) for one in actions]


def instructions(problem: Problem) -> str:
    """What the user wants and knows."""
    told = scenario(problem).get("instructions")
    if isinstance(told, dict):
        parts = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
        return "\n".join(str(told[part]) for part in parts if told.get(part))
    return str(told or "")


def domain_of(problem: Problem, otherwise: str) -> str:
    """Whose actions it needs, as it says; many tasks do not."""
    told = scenario(problem).get("instructions")
    return str((told.get("domain") if isinstance(told, dict) else None) or otherwise)


def history(problem: Problem) -> tuple[Message, ...]:
    """What was said before the task begins."""
    return tuple(map(_said, initial(problem).get("message_history") or ()))


def told(trace: Trace) -> str:
    """All that the model said to the user, be it by the tool that is the user."""
    calls = (span.call for span in model_spans(trace))
    said = [call.choices[0].message for call in calls if call and call.choices]
    by_tool = [one.arguments for message in said for one in message.tool_calls
               if one.name == TO_USER]  # fmt: skip
    return " ".join([*(message.text for message in said), *by_tool])


def plain(text: str) -> str:
    """As facts are looked for: whatever its case, numbers without their commas."""
    return text.lower().replace(",", "")


def _answer(problem: Problem) -> Mapping[str, Any]:
    return problem.answer if isinstance(problem.answer, dict) else {}


def _said(one: Mapping[str, Any]) -> Message:
    content = one.get("content")
    if one["role"] == "tool":
        return Message(role="tool", parts=(ToolResult(content=content or "", id=one.get("id")),))
    calls = tuple(
        ToolCall(name=call["name"], arguments=json.dumps(call["arguments"]), id=call.get("id"))
        for call in one.get("tool_calls") or ()
    )
    text = () if content is None else (Text(text=content),)
    return Message(role=one["role"], parts=(*text, *calls))
