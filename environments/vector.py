"""Outcome and process rewards together: one vector a trace, one value a span of sampled tokens.

Enter: the grades of one trace. Leave: an entry for each reward, and a number for each model call.
Invariant: a reward that could not be given is null and stays null: no number is made without it.

With outcome rewards i (value v_i, weight w_i) and process rewards k (value p_k(s) at span s, weight
w_k), the value of the tokens that model call s sampled is the weighted mean of all that speaks of
it, in the scale of the rewards themselves:

    value(s) = (Σ_i w_i v_i + Σ_{k at s} w_k p_k(s)) / (Σ_i w_i + Σ_{k at s} w_k)

A tool call counts at the model call that asked for it; several of one kind at one call are their
mean. What null means for training: where any outcome reward is null, the trace has no score and no
token of it is trained; where a process reward is null at one call, that call's tokens alone have no
value and are masked; metrics (weight 0) never matter.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flywheel.records import Grade, Span, Trace, model_spans


class Entry(NamedTuple):
    """One reward of one trace."""

    reward: str
    value: float | None
    """Of a process reward the mean over its steps. None = it, or one of its steps, is null."""
    weight: float
    steps: int | None = None
    """Of a process reward: how many it graded. None = an outcome reward."""
    reason: str | None = None
    """Why the value is None."""


def vector(grades: Sequence[Grade]) -> tuple[Entry, ...]:
    """One entry for each reward and metric, in the order that they were given in."""
    named: dict[str, list[Grade]] = {}
    for grade in grades:
        named.setdefault(grade.reward, []).append(grade)
    return tuple(_entry(name, given) for name, given in named.items())


def _entry(name: str, given: Sequence[Grade]) -> Entry:
    steps = None if given[0].span_id is None else len(given)
    missing = next((one for one in given if one.value is None), None)
    value = None if missing else _mean([one.value for one in given if one.value is not None])
    reason = (missing.reason or "not given") if missing else None
    return Entry(name, value, given[0].weight, steps, reason)


def token_values(trace: Trace, grades: Sequence[Grade]) -> dict[str, float | None]:
    """The value of each model call's sampled tokens, by span id; the formula is above.

    None = not to be trained on: a reward that speaks of it is null, or none does.
    """
    trained = [grade for grade in grades if grade.weight > 0]
    outcome = [(one.weight, one.value) for one in trained if one.span_id is None]
    calls = model_spans(trace)
    asked_by = _asked_by(trace, calls)
    steps: defaultdict[str, defaultdict[str, list[Grade]]]
    steps = defaultdict(lambda: defaultdict(list))
    for grade in trained:
        if grade.span_id in asked_by:
            steps[asked_by[grade.span_id]][grade.reward].append(grade)
    values: dict[str, float | None] = {}
    for call in calls:
        process = [(entry.weight, entry.value) for entry in _entries(steps[call.id])]
        values[call.id] = _weighted([*outcome, *process])
    return values


def _entries(steps: Mapping[str, Sequence[Grade]]) -> list[Entry]:
    return [_entry(name, given) for name, given in steps.items()]


def _asked_by(trace: Trace, calls: Sequence[Span]) -> dict[str, str]:
    """Span id -> id of the model call whose tokens led to it: itself, the nearest model call above
    it, else the last that began before it."""
    by_id = {span.id: span for span in trace.spans}
    found = {}
    for span in trace.spans:
        above = _above(span, by_id)
        if above is None and span.start is not None:
            earlier = [one for one in calls if one.start is not None and one.start <= span.start]
            above = earlier[-1].id if earlier else None
        if above is not None:
            found[span.id] = above
    return found


def _above(span: Span, by_id: Mapping[str, Span]) -> str | None:
    seen: set[str] = set()
    level = [span.id]
    while level:
        for name in level:
            if name in by_id and by_id[name].call is not None:
                return name
        seen.update(level)
        parents = (parent for name in level if name in by_id for parent in by_id[name].parents)
        level = [parent for parent in parents if parent not in seen]
    return None


def _weighted(parts: Sequence[tuple[float, float | None]]) -> float | None:
    known = [(weight, value) for weight, value in parts if value is not None]
    if not parts or len(known) < len(parts):
        return None
    return sum(weight * value for weight, value in known) / sum(weight for weight, _ in known)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
