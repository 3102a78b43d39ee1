"""Which recorded traces a judge is asked about, and in which order its budget is spent.

Enter: traces, each with its slice and day, and a share. Leave: the chosen ones, in order.
Invariants: a trace is chosen by the hash of its id, so that another run chooses the same; each
slice of each day is represented; a budget that ends early has gone evenly over them.
"""

from collections.abc import Iterable
from typing import NamedTuple

from flywheel.ids import digest


class Candidate(NamedTuple):
    id: str
    slice: str
    day: str
    """As the caller cuts days; "" = not known."""


def chosen(candidates: Iterable[Candidate], share: float) -> list[str]:
    """Ids of the sample: in each stratum those whose hash lies below `share`, and at least one."""
    if share <= 0:
        return []
    strata: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for one in candidates:
        strata.setdefault((one.slice, one.day), []).append((place(one.id), one.id))
    ordered: list[tuple[float, float, str]] = []
    for members in strata.values():
        members.sort()
        taken = [one for one in members if one[0] < share] or members[:1]
        ordered += [((rank + 0.5) / len(taken), at, one) for rank, (at, one) in enumerate(taken)]
    return [one for _, _, one in sorted(ordered)]


def place(trace_id: str) -> float:
    """From 0 to 1, the same for the same id, evenly over ids."""
    return int(digest("judged", trace_id)[:13], 16) / 16**13
