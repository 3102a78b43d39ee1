"""Which side of the evaluation a problem stands on: training or held out.

Enter: problems in the order their traces came. Leave: those that may stay, each with its side.
Invariant: a user, a conversation, a prompt and a nearly equal text are never on both sides. What
came first stays where it is, so that more traffic moves nothing: a later problem that would break
the rule is left out. A side that was given once is kept, also where an earlier
asker turns up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from environments.near import Frequencies, NearIndex
from environments.tasksets.contract import Side, TaskSet
from flywheel.curate_section import ProblemsSection
from flywheel.ids import digest
from flywheel.records import Problem


class Split(NamedTuple):
    problems: list[Problem]
    left_out: Counter[str]
    """By what would have stood on both sides: user, conversation, near duplicate."""


def split(
    problems: Iterable[Problem],
    section: ProblemsSection,
    near_duplicate: float,
    settled: Mapping[str, Side] | None = None,
) -> Split:
    """Decides each problem's side by hash, held-out slices apart, and keeps what stays clean.

    Args:
        near_duplicate: word-trigram Jaccard of the users' own words from which two problems count
            as the same.
        settled: sides that were given before, by problem id: these problems stay first of all.
    """
    problems, settled = list(problems), settled or {}
    sides: dict[str, Side] = {}
    left_out: Counter[str] = Counter()
    owners: dict[tuple[str, str], Side] = {}
    frequencies = Frequencies(problem.text for problem in problems)
    texts = {side: NearIndex(near_duplicate, frequencies) for side in ("train", "heldout")}
    for problem in sorted(problems, key=lambda one: one.id not in settled):
        side = _kept_side(problem, section, settled.get(problem.id))
        other: Side = "heldout" if side == "train" else "train"
        keys = [(kind, key) for kind in ("user", "conversation") if (key := getattr(problem, kind))]
        clash = next((kind for kind, key in keys if owners.get((kind, key)) == other), None)
        if clash is None and texts[other].near(problem.text):
            clash = "near duplicate"
        if clash is not None:
            left_out[clash] += 1
            continue
        owners.update({key: side for key in keys})
        texts[side].add(problem.text)
        sides[problem.id] = side
    kept = [
        msgspec.structs.replace(problem, split=sides[problem.id])
        for problem in problems
        if problem.id in sides
    ]
    return Split(kept, left_out)


def _kept_side(problem: Problem, section: ProblemsSection, given: Side | None) -> Side:
    """What was held out stays so; what was trained on is held out where its slice is by now."""
    if given is None or problem.slice in section.heldout_slices:
        return side_of(problem, section)
    return given


def side_of(problem: Problem, section: ProblemsSection | TaskSet) -> Side:
    """The side that the hash of its user gives; where that is not known of its conversation, then
    of the problem itself. A held-out slice is held out whoever asks."""
    if problem.slice in section.heldout_slices:
        return "heldout"
    owner = problem.user or problem.conversation or problem.id
    place = int(digest("split", problem.environment, owner)[:12], 16) / 16**12
    return "heldout" if place < section.heldout_share else "train"
