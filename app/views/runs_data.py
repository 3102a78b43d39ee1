"""A run in numbers: its curves, its answers beside the champion's, and what it did otherwise.

Enters a home and run ids; leaves rows for charts and tables. Curves come from the trainer's file,
answers from the evaluation's traces; both are bounded.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from app.views.ledger_data import Turn
from app.views.progress_data import lines_of
from flywheel.home import Home
from flywheel.lineage import Evaluation
from flywheel.records import Grade, Message, Problem, Record, Trace, last_answer, model_spans
from trainer.alarms import Alarm, Heldout, alarms
from trainer.panels import drawn

MOST_POINTS = 1000
"""Of a curve; a longer one is thinned evenly, its last point kept."""
MOST_PAIRS = 5000

Change = Literal["won", "lost", "same", "ungraded"]


class Point(Record, frozen=True, kw_only=True):
    run: str
    """What a person calls it by."""
    line: str
    """Which of its panel's."""
    step: int
    value: float


class Curves(Record, frozen=True, kw_only=True):
    """One panel, with the lines of one or several runs."""

    title: str
    unit: str
    points: tuple[Point, ...]


class Answer(Record, frozen=True, kw_only=True):
    trace_id: str
    message: Message | None
    """None = the model gave none; `why` says more."""
    why: str
    reward: float | None
    grades: tuple[Grade, ...]


class Pair(Record, frozen=True, kw_only=True):
    """One held-out problem, answered by both models."""

    problem: Problem | None
    """None = it is not in the store any more."""
    problem_id: str
    slice: str
    attempt: int
    messages: tuple[Message, ...]
    """What both were asked."""
    champion: Answer | None
    candidate: Answer | None
    change: Change
    """won = the candidate's reward is higher; ungraded = one of the two has none."""

    @property
    def asked(self) -> str:
        """The last thing that was said to the model, in one line."""
        users = [one for one in self.messages if one.role == "user"] or list(self.messages)
        return " ".join(users[-1].text.split()) if users else ""


def curves(home: Home, runs: Sequence[Turn]) -> list[Curves]:
    """What runs measured as they trained, in panels; one that none of them has is left out."""
    rows = {turn.name: _thinned(metrics_of(home, turn)) for turn in runs}
    names = {name for lines in rows.values() for row in lines for name in row if _number(row[name])}
    return [
        Curves(
            title=panel.title,
            unit=panel.unit,
            points=tuple(
                Point(run=run, line=label, step=row["step"], value=float(row[name]))
                for run, lines in rows.items()
                for name, label in panel.lines
                for row in lines
                if _number(row.get(name))
            ),
        )
        for panel in drawn(names - {"step"})
    ]


def metrics_of(home: Home, turn: Turn) -> list[dict[str, Any]]:
    """Its lines of metrics.jsonl."""
    rows = lines_of(home.runs / turn.run_id / "metrics.jsonl")
    return [row for row in rows if isinstance(row.get("step"), int)]


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    stride = max(1, -(-len(rows) // MOST_POINTS))
    return rows[::stride] + ([rows[-1]] if rows and (len(rows) - 1) % stride else [])


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def alarms_of(home: Home, turn: Turn) -> list[Alarm]:
    """What its metrics and its evaluation warn of."""
    found, heldout = turn.evaluation.overall if turn.evaluation else None, None
    if found is not None and found.difference is not None:
        heldout = Heldout(found.difference, found.low, found.high)
    return alarms(metrics_of(home, turn), heldout)


def pairs(home: Home, project: str, evaluation: Evaluation) -> list[Pair]:
    """What both models answered in an evaluation: changed ones first, then by slice and problem."""
    from storage.judgements import grades
    from storage.queries import problems, traces

    sides: dict[tuple[str, int], dict[str, Trace]] = {}
    for batch in traces(home, project=project, origin="evaluation", run_id=evaluation.run_id):
        for one in batch:
            side, key = one.attributes.get("side"), (one.problem_id or "", one.attempt or 0)
            if side in ("champion", "candidate") and (key in sides or len(sides) < MOST_PAIRS):
                sides.setdefault(key, {})[side] = one
    ids = [one.id for both in sides.values() for one in both.values()]
    given: dict[str, list[Grade]] = {}
    for grade in grades(home, trace_ids=ids) if ids else []:
        given.setdefault(grade.trace_id, []).append(grade)
    known = {one.id: one for one in problems(home, ids=sorted({key for key, _ in sides}))}
    found = [
        _pair(problem, attempt, both, given, known.get(problem))
        for (problem, attempt), both in sides.items()
    ]
    order: dict[Change, int] = {"lost": 0, "won": 1, "ungraded": 2, "same": 3}
    return sorted(
        found, key=lambda one: (order[one.change], one.slice, one.problem_id, one.attempt)
    )


def _pair(
    problem_id: str,
    attempt: int,
    both: dict[str, Trace],
    given: dict[str, list[Grade]],
    problem: Problem | None,
) -> Pair:
    champion, candidate = (
        _answer(both[side], given.get(both[side].id, [])) if side in both else None
        for side in ("champion", "candidate")
    )
    calls = [call for trace in both.values() for call in model_spans(trace)]
    recorded = calls[0].call.input if calls and calls[0].call else ()
    return Pair(
        problem=problem,
        problem_id=problem_id,
        slice=problem.slice if problem else "unknown",
        attempt=attempt,
        messages=problem.messages if problem else recorded,
        champion=champion,
        candidate=candidate,
        change=_changed(champion, candidate),
    )


def _answer(trace: Trace, given: list[Grade]) -> Answer:
    from environments.grading import score, why_ungradable

    choice = last_answer(trace)
    return Answer(
        trace_id=trace.id,
        message=choice.message if choice else None,
        why=why_ungradable(trace) or "",
        reward=score(given),
        grades=tuple(given),
    )


def _changed(champion: Answer | None, candidate: Answer | None) -> Change:
    if not champion or not candidate or champion.reward is None or candidate.reward is None:
        return "ungraded"
    if candidate.reward == champion.reward:
        return "same"
    return "won" if candidate.reward > champion.reward else "lost"


def configuration(one: dict[str, Any], other: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """(key, its value, the other's value) of two configurations: where they differ, or with no
    other all of it. "–" = it has no such key."""
    mine, theirs = _flat(one), _flat(other or {})
    keys = sorted({*mine, *theirs})
    if other is None:
        return [(key, mine[key], "") for key in keys]
    return [
        (key, mine.get(key, "–"), theirs.get(key, "–"))
        for key in keys
        if mine.get(key) != theirs.get(key)
    ]


def _flat(value: Any, at: str = "") -> dict[str, str]:
    """Dotted keys; a rule's parameters stand under its name."""
    if isinstance(value, dict):
        if not value:
            return {at: "none"} if at else {}
        items = [(str(key), inner) for key, inner in value.items() if not (at and key == "name")]
        made = [_flat(inner, f"{at}.{key}" if at else key) for key, inner in items]
        return {key: inner for one in made for key, inner in one.items()}
    if isinstance(value, list | tuple) and value and all(isinstance(one, dict) for one in value):
        named = [(str(one.get("name", place)), one) for place, one in enumerate(value)]
        made = [_flat(inner, f"{at}.{key}") or {f"{at}.{key}": "on"} for key, inner in named]
        return {key: inner for one in made for key, inner in one.items()}
    return {at: "none" if value is None else str(value)}
