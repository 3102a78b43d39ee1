"""Picks the problems that are worth a turn: what is asked often, and what the champion can half do.

Enter: problems with their sides, how often each was asked, and the champion's pass rates. Leave:
the same problems with `attributes` cluster, traffic, difficulty and, where picked, pick (its rank
from 0), and a line for each cluster. Invariant: the held-out side is picked without regard to
difficulty, so that it measures what traffic is; nothing here moves a problem to the other side.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from environments.clusters import clustered
from environments.near import Frequencies, NearIndex
from environments.tasksets.contract import Side
from flywheel.ids import digest
from flywheel.records import Problem

_EXAMPLE = 160
"""Characters of an example."""


class PassRate(NamedTuple):
    """How the champion did on a problem."""

    share: float
    """Of its answers that earned full marks."""
    answers: int


class Cluster(NamedTuple):
    name: str
    problems: int
    traffic: int
    share: float
    """Of all traffic."""
    pass_rate: float | None
    """The champion's, over its graded answers. None = none was graded."""
    graded: int
    """Answers."""
    picked: int
    example: str
    """The beginning of its most asked problem."""


class Picked(NamedTuple):
    problems: list[Problem]
    """All of them, in the order that they came in."""
    clusters: list[Cluster]
    """The most asked first."""


def pick(
    problems: Sequence[Problem],
    rates: Mapping[str, PassRate],
    limits: Mapping[Side, int],
    *,
    needs_truth: bool = True,
    near_duplicate: float = 0.7,
) -> Picked:
    """
    Args:
        rates: by problem id.
        limits: problems picked of each side, at most.
        needs_truth: a problem without an answer is of no use, so it is not picked.
    """
    found = clustered([problem.text for problem in problems])
    frequencies = Frequencies(problem.text for problem in problems)
    ranks: dict[str, int] = {}
    for side, limit in limits.items():
        able: defaultdict[int, list[Problem]] = defaultdict(list)
        asked: defaultdict[int, int] = defaultdict(int)
        for problem, label in zip(problems, found.labels, strict=True):
            asked[label] += _traffic(problem)
            if problem.split == side and not (needs_truth and problem.answer is None):
                able[label].append(problem)
        for group in able.values():
            group.sort(key=lambda one: _worth(one, rates) if side == "train" else _drawn(one))
        seen = NearIndex(near_duplicate, frequencies)
        ranks |= {id: at for at, id in enumerate(_dealt(able, asked, limit, seen))}
    marked = [
        _marked(problem, found.names[label], rates.get(problem.id), ranks.get(problem.id))
        for problem, label in zip(problems, found.labels, strict=True)
    ]
    return Picked(marked, _clusters(marked, found.names, found.labels, rates))


def _dealt(
    able: Mapping[int, list[Problem]], asked: Mapping[int, int], limit: int, seen: NearIndex
) -> list[str]:
    """Ids in the order they are picked: each time from the cluster that is furthest behind its
    share of the traffic, without what is nearly there already."""
    rest = {label: iter(group) for label, group in able.items()}
    taken = dict.fromkeys(able, 0)
    dealt: list[str] = []
    while rest and len(dealt) < limit:
        label = min(rest, key=lambda one: ((taken[one] + 1) / max(asked[one], 1), one))
        problem = next((one for one in rest[label] if not seen.near(one.text)), None)
        if problem is None:
            del rest[label]
            continue
        seen.add(problem.text)
        taken[label] += 1
        dealt.append(problem.id)
    return dealt


def _worth(problem: Problem, rates: Mapping[str, PassRate]) -> tuple[Any, ...]:
    """Half-mastered problems teach most; then what was never tried, what always failed, and last
    what always worked. Of equals the most asked."""
    rate = rates.get(problem.id)
    if rate is None:
        group, far = 1, 0.0
    elif 0 < rate.share < 1:
        group, far = 0, abs(rate.share - 0.5)
    else:
        group, far = (3 if rate.share else 2), 0.0
    return group, far, -_traffic(problem), digest("pick", problem.id)


def _drawn(problem: Problem) -> tuple[Any, ...]:
    return (digest("pick", problem.id),)


def _traffic(problem: Problem) -> int:
    return int(problem.attributes.get("traffic", 1))


def _marked(problem: Problem, cluster: str, rate: PassRate | None, rank: int | None) -> Problem:
    told: dict[str, Any] = {"cluster": cluster, "traffic": _traffic(problem)}
    told["difficulty"] = None if rate is None else round(1 - rate.share, 4)
    told["tried"] = 0 if rate is None else rate.answers
    if rank is not None:
        told["pick"] = rank
    rest = {key: one for key, one in problem.attributes.items() if key != "pick"}
    return msgspec.structs.replace(problem, attributes=rest | told)


def _clusters(
    problems: Sequence[Problem],
    names: Sequence[str],
    labels: Sequence[int],
    rates: Mapping[str, PassRate],
) -> list[Cluster]:
    inside: defaultdict[int, list[Problem]] = defaultdict(list)
    for problem, label in zip(problems, labels, strict=True):
        inside[label].append(problem)
    total = sum(map(_traffic, problems)) or 1
    found = [_cluster(names[label], group, total, rates) for label, group in inside.items()]
    return sorted(found, key=lambda one: (-one.traffic, one.name))


def _cluster(
    name: str, group: Sequence[Problem], total: int, rates: Mapping[str, PassRate]
) -> Cluster:
    known = [rates[one.id] for one in group if one.id in rates]
    graded = sum(rate.answers for rate in known)
    traffic = sum(map(_traffic, group))
    most = min(group, key=lambda one: (-_traffic(one), one.id))
    return Cluster(
        name=name,
        problems=len(group),
        traffic=traffic,
        share=traffic / total,
        pass_rate=sum(rate.share * rate.answers for rate in known) / graded if graded else None,
        graded=graded,
        picked=sum("pick" in one.attributes for one in group),
        example=" ".join(most.text.split())[:_EXAMPLE],
    )
