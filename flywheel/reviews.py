"""A reviewer's verdict on an answer, as the Feedback that it is stored as, and what several make.

Its name is `review`, one stands for each person and trace, a later one supersedes. An accepted or
corrected answer is a demonstration: its `value` is the whole answer as it should have been. One
that `settles` a disagreement stands instead of all others. A hidden `gold` verdict is what
reviewers are measured by.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from flywheel.records import Feedback, Grade

NAME = "review"
GOLD = "gold"
"""Name of the feedback that says what is known of a trace: true = accepted."""
SETTLES = "settles"
"""Attribute of a review that was given in sight of the others'."""
PERSON, SETTLER = "person:", "settled:"
"""What the grader of a review's grade begins with, and of one that settles."""
SUBJECT = "sub:"
"""Before what a sign-in calls a person by itself, so that it is never a name or an address."""
SMALL = "abcdefghijklmnopqrstuvwxyz"
_LETTERS = str.maketrans(SMALL.upper(), SMALL)
Verdict = Literal["accepted", "rejected", "corrected", "withdrawn"]
"""withdrawn: the reviewer took back what was said."""
STANDING: tuple[Verdict, ...] = ("accepted", "rejected", "corrected")
State = Literal["open", "agreed", "disputed", "settled"]
"""open: fewer looked at it than the project wants. disputed: they are at odds. settled: somebody
decided in sight of what the others said."""


class Label(NamedTuple):
    """What people's verdicts on one answer come to."""

    state: State
    value: float | None
    """1 = good, 0 = not; between them where they count as their mean; None = no label yet."""


def verdict_of(feedback: Feedback) -> Verdict | None:
    """None = this is no review."""
    said = feedback.attributes.get("verdict")
    return said if feedback.name == NAME and said in get_args(Verdict) else None


def states_answer(feedback: Feedback) -> bool:
    """Whether it says what the answer should have been."""
    return feedback.kind == "demonstration" and verdict_of(feedback) in ("accepted", "corrected")


def settled(feedback: Sequence[Feedback]) -> list[Feedback]:
    """Without the reviews that a later word settled."""
    deciding = [one for one in _words(feedback) if one.attributes.get(SETTLES)]
    if not deciding:
        return list(feedback)
    last = max(deciding, key=_when)
    return [one for one in feedback if one is last or verdict_of(one) is None]


def counting(feedback: Sequence[Feedback], *, reviewers: int, adjudicate: bool) -> list[Feedback]:
    """Without the reviews that are not the label: all of them while it is open or waits for a
    word, else those that it overrules. Where they count as their mean they all are."""
    votes = _words(feedback)
    last = max((one for one in votes if one.attributes.get(SETTLES)), key=_when, default=None)
    label = label_of(
        [_good(one) for one in votes],
        None if last is None else _good(last),
        reviewers=reviewers,
        adjudicate=adjudicate,
    )
    mean = label.value is not None and 0 < label.value < 1
    kept = {one.id for one in votes if mean or _good(one) == label.value}
    return [one for one in feedback if verdict_of(one) is None or one.id in kept]


def one_person(name: str) -> str:
    """The same for the spellings of one person's name, as in people.toml. More than A to Z would
    make other people's names the same: ß becomes ss, the Kelvin sign k."""
    bare = name.strip(" ")
    if bare[: len(SUBJECT)].lower() == SUBJECT:
        return SUBJECT + bare[len(SUBJECT) :]
    return bare.translate(_LETTERS)


def label_of(
    votes: Sequence[float], settled: float | None, *, reviewers: int, adjudicate: bool
) -> Label:
    """
    Args:
        votes: 1 = accepted, 0 = rejected or corrected; one a reviewer.
        settled: what a later word decided. None = there is none.
        reviewers: who must have looked before it counts.
        adjudicate: whether those at odds wait for a majority, instead of counting as their mean.
    """
    if settled is not None:
        return Label("settled", settled)
    if len(votes) < reviewers or not votes:
        return Label("open", None)
    mean = sum(votes) / len(votes)
    if mean in (0.0, 1.0):
        return Label("agreed", mean)
    if not adjudicate:
        return Label("disputed", mean)
    return Label("disputed", None) if mean == 0.5 else Label("agreed", float(mean > 0.5))


def labelled(grades: Sequence[Grade], *, reviewers: int, adjudicate: bool) -> list[Grade]:
    """People's grades of one trace as the one that their label is; all others as they are.

    A label that is still open has no weight; one that waits for a third word has no value, so that
    the trace has no reward.
    """
    people = [one for one in grades if one.kind == "human" and one.reward == NAME]
    spoken: dict[str, Grade] = {}
    # Who settles takes the own word before it back at the same moment.
    for one in sorted(people, key=lambda one: (one.at, one.grader.startswith(SETTLER), one.id)):
        spoken[one_person(one.grader.removeprefix(SETTLER).removeprefix(PERSON))] = one
    standing = [one for one in spoken.values() if one.weight and one.value is not None]
    if not standing:
        return list(grades)
    deciding = [one for one in standing if one.grader.startswith(SETTLER)]
    last = max(deciding, key=_when, default=None)
    label = label_of(
        [one.value for one in standing if one.value is not None],
        None if last is None else last.value,
        reviewers=reviewers,
        adjudicate=adjudicate,
    )
    shown = last or max(standing, key=_when)
    if label.value is None:
        why = {
            "open": f"{len(standing)} of {reviewers} reviewers looked at it",
            "disputed": "reviewers are at odds: it waits for one more",
        }[label.state]
        one = msgspec.structs.replace(
            shown, value=None, reason=why, confirmed_by=None,
            weight=0.0 if label.state == "open" else shown.weight,
        )  # fmt: skip
    else:
        one = msgspec.structs.replace(shown, value=label.value)
    return [*(other for other in grades if other not in people), one]


def _words(feedback: Sequence[Feedback]) -> list[Feedback]:
    """Of each person the last review, where it was not taken back."""
    latest: dict[str, Feedback] = {}
    for one in feedback:
        who = one_person(one.by or one.id)
        if verdict_of(one) is not None and _after(latest.get(who), one):
            latest[who] = one
    return [one for one in latest.values() if verdict_of(one) in STANDING]


def _when(said: Feedback | Grade) -> tuple[int, str]:
    return said.at, said.id


def _after(before: Feedback | None, now: Feedback) -> bool:
    return before is None or _when(before) < _when(now)


def _good(feedback: Feedback) -> float:
    return float(verdict_of(feedback) == "accepted")
