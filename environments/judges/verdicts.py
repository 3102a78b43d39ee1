"""Reads a judge's reply, strictly: it is the object that was asked for, or it is nothing.

Enter: the reply's text. Leaves: the verdict as a number from 0 to 1 and the judge's reason.
Invariant: nothing is searched for in prose, so no number that the judged text put there is found.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from environments.judges.questions import Question
from environments.judges.quoting import whole

LONGEST_REASON = 1000
_FENCED = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)
_PREFERRED = {"first": 1.0, "neither": 0.5, "second": 0.0}


class Fits(NamedTuple):
    value: float
    reason: str


def read(question: Question, text: str) -> Fits | str:
    """The verdict, or why it does not fit. One fence around the object and thoughts before it are
    let through."""
    said = text.rpartition("</think>")[2].strip()
    fenced = _FENCED.match(said)
    try:
        found = json.loads(fenced[1] if fenced else said, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON object ({str(error)[:80]})" if said else "it is empty"
    wanted = {"check", "reason", question.answer_key}
    if not isinstance(found, dict) or set(found) != wanted:
        return f"it is no object of the keys {', '.join(sorted(wanted))}"
    if found["check"] != question.check:
        return "its check word is not the one that was asked for"
    if not isinstance(found["reason"], str):
        return "its reason is no text"
    value = _value(question, found[question.answer_key])
    return value if isinstance(value, str) else Fits(value, whole(found["reason"])[:LONGEST_REASON])


def _value(question: Question, said: Any) -> float | str:
    if question.kind == "compare":
        known = _PREFERRED.get(said) if isinstance(said, str) else None
        return f"{said!r:.40} is not {question.form}" if known is None else known
    whole = isinstance(said, int | float) and not isinstance(said, bool) and said == said // 1
    if not whole or not 0 <= said <= question.scale:
        return f"{said!r:.40} is not {question.form}"
    return float(said) / question.scale


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice")
    return made


def combined(votes: Sequence[Fits], majority: bool) -> Fits:
    """All votes' verdict, with the reason of the vote that lies nearest to it."""
    values = [vote.value for vote in votes]
    if majority:
        most = max(values.count(one) for one in values)
        values = [one for one in dict.fromkeys(values) if values.count(one) == most]
    value = sum(values) / len(values)
    return Fits(value, min(votes, key=lambda vote: abs(vote.value - value)).reason)
