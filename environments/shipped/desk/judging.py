"""What a played trace is worth: its needed actions, its steps, what is asserted of its end.

Enter: what was played, and a task's criteria. Leave: shares and truths. Invariant: only what was
done counts; a call that failed is no action.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from environments.marks import Ungraded
from environments.shipped.desk.domain import Call, Domain
from environments.shipped.desk.replay import Played, Step


def share_made(needed: Sequence[Mapping[str, Any]], played: Played) -> float:
    """Of the needed actions; 1 where none is needed."""
    calls = [step.call for step in played.steps if step.error is None]
    return sum(is_made(one, calls) for one in needed) / len(needed) if needed else 1.0


def is_made(needed: Mapping[str, Any], calls: Sequence[Call]) -> bool:
    """Whether one of `calls` is the needed action; `compare_args` names what must be equal of its
    arguments, None = all of them."""
    compared = needed.get("compare_args")
    wanted = needed.get("arguments") or {}
    names = wanted if compared is None else compared
    return any(
        call.name == needed["name"]
        and all(call.arguments.get(name) == wanted.get(name) for name in names)
        for call in calls
    )


def is_useful(
    domain: Domain, step: Step, played: Played, needed: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether a step was needed, or read something for the first time."""
    action = domain.actions.get(step.call.name)
    if action is None or step.error is not None:
        return False
    if any(is_made(one, [step.call]) for one in needed):
        return True
    return not action.writes and step == next(one for one in played.steps if one.call == step.call)


def understood(own: Sequence[Step], played: Played) -> bool:
    """Whether these steps make none of the calls again that failed before.

    Raises:
        Ungraded: none had failed.
    """
    before = played.steps[: played.steps.index(own[0])]
    failed = [step.call for step in before if step.error is not None]
    if not failed:
        raise Ungraded("no call failed before this step")
    return not any(step.call in failed for step in own)


def holds(domain: Domain, assertion: Mapping[str, Any], played: Played) -> bool:
    """
    Raises:
        Ungraded: it cannot be said here.
    """
    name = assertion["func_name"]
    if assertion.get("env_type", "assistant") != "assistant":
        raise Ungraded(f"{name} asserts something of the user's own tools, which are not here")
    if name not in domain.assertions:
        raise Ungraded(f"this desk has no assertion {name}")
    held = domain.assertions[name](played.database, **assertion["arguments"])
    return bool(held == assertion.get("assert_value", True))
