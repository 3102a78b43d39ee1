"""Which side of the evaluation a problem stands on: training or held out.

Enter: problems in the order their traces came. Leave: those that may stay, each with its side.
Invariant: a user, a conversation, a prompt and a nearly equal text are never on both sides. What
came first stays where it is, so that more traffic moves nothing: a later problem that would break
the rule is left out.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from environments.near import Frequencies, NearIndex
from environments.tasksets.contract import Side, TaskSet
from flywheel.ids import digest
from flywheel.project import ProblemsSection
from flywheel.records import Problem


class Split(NamedTuple):
    problems: list[Problem]
    left_out: Counter[str]
    """By what would have stood on both sides: user, conversation, near duplicate."""


def split(problems: Iterable[Problem], section: ProblemsSection, near_duplicate: float) -> Split:
    """Decides each problem's side by hash, held-out slices apart, and keeps what stays clean.

    `near_duplicate` is the word-trigram Jaccard of the users' own words from which two problems
    count as the same.
    """
    problems = list(problems)
    kept: list[Problem] = []
    left_out: Counter[str] = Counter()
    owners: dict[tuple[str, str], Side] = {}
    frequencies = Frequencies(problem.text for problem in problems)
    texts = {side: NearIndex(near_duplicate, frequencies) for side in ("train", "heldout")}
    for problem in problems:
        side = side_of(problem, section)
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
        kept.append(msgspec.structs.replace(problem, split=side))
    return Split(kept, left_out)


def side_of(problem: Problem, section: ProblemsSection | TaskSet) -> Side:
    """The side that the hash of its user gives; where that is not known of its conversation, then
    of the problem itself. A held-out slice is held out whoever asks."""
    if problem.slice in section.heldout_slices:
        return "heldout"
    owner = problem.user or problem.conversation or problem.id
    place = int(digest("split", problem.environment, owner)[:12], 16) / 16**12
    return "heldout" if place < section.heldout_share else "train"
