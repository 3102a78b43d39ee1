"""What was drawn between a version and the champion, as an estimate's second half.

Enter the production traces that say between whom they were drawn; leaves the off-policy estimate,
and how many traces it leaves out, and why. One piece of evidence is what was drawn for as one.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.records import Trace, main_spans
from tasks.step import step
from tasks.turns import Turn, environment_of, home, project_of

if TYPE_CHECKING:
    from environments.offpolicy import Logged

MOST_LOGGED = 20_000


@step(minutes=30)
def weigh_logged(turn: Turn, challenger: dict[str, Any]) -> dict[str, Any]:
    """What whole answers say whose deployment was drawn between the version and the champion."""
    from environments.offpolicy import off_policy

    counts = Counter[str]()
    logged = list(logged_answers(turn, challenger["name"], counts))
    found = off_policy(
        logged,
        candidate=challenger["name"],
        champion=turn.champion,
        confidence=project_of(turn).gate.confidence,
    )
    made: dict[str, Any] = msgspec.to_builtins(found)
    return {**made, "left_out": dict(counts)}


def logged_answers(turn: Turn, candidate: str, counts: Counter[str]) -> "Iterator[Logged]":
    from environments.asked import posed
    from environments.grading import score
    from environments.offpolicy import Logged
    from storage.judgements import grades
    from storage.queries import traces
    from storage.served import drawn

    environment, heard = environment_of(project_of(turn)), set[str]()
    ids = drawn(home(), project_of(turn).traffic, limit=MOST_LOGGED)
    for batch in traces(home(), ids=ids):
        given: dict[str, list[Any]] = {trace.id: [] for trace in batch}
        for grade in grades(home(), trace_ids=list(given)):
            given[grade.trace_id].append(grade)
        for trace in batch:
            arm = drawn_arm(trace, {candidate, turn.champion})
            if isinstance(arm, str):
                counts[arm] += 1
                continue
            reward = score(given[trace.id])
            if reward is None:
                counts["not_graded"] += 1
                continue
            if drawn_as(trace) in heard:
                counts["drawn_together"] += 1
                continue
            heard.add(drawn_as(trace))
            problem = posed(environment, trace, ()).problem
            yield Logged(trace.id, *arm, reward, problem.slice if problem else "all")


def drawn_arm(trace: Trace, arms: set[str]) -> tuple[str, float] | str:
    """Who was drawn to answer it, and how likely that was; else why it says nothing of these two:
    another pair was tried then, or several deployments answered parts of it."""
    calls = [span for span in main_spans(trace) if span.call is not None]
    drawing = next((one.attributes.get("drawn") for one in calls), None)
    among = drawing.get("among") if isinstance(drawing, dict) else None
    if not isinstance(drawing, dict) or not isinstance(among, dict) or not arms <= among.keys():
        return "others_tried"
    chosen = str(drawing.get("chosen"))
    if not _is_chance(among.get(chosen)):
        return "others_tried"
    if chosen not in arms or {one.call.deployment for one in calls if one.call} != {chosen}:
        return "several_answered"
    return chosen, float(among[chosen])


def drawn_as(trace: Trace) -> str:
    """What was drawn for as one, and is one piece of evidence: the conversation, else its user."""
    named = trace.conversation
    if named is not None and named not in {span.id for span in trace.spans}:
        return f"conversation:{named}"
    return trace.id if trace.user is None else f"user:{trace.user}"


def _is_chance(value: object) -> bool:
    return isinstance(value, float) and 0 < value <= 1
