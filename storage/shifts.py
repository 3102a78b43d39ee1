"""How far columns of two datasets lie apart: population stability index, distance of Kolmogorov and
Smirnov, divergence of Jensen and Shannon.

Two narrow frames enter, the earlier one first; leaves one `Shift` a column, with the shares it was
computed of. A value that is not known is a bin of its own; a column that one of the two does not
know at all is compared with nothing, and says so.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

from flywheel.records import Record

if TYPE_CHECKING:
    import polars as pl

COMPARED: tuple[str, ...] = (
    "prompt_tokens", "answer_tokens", "reward", "slice", "source", "origin", "label", "language",
    "finish_reason",
)  # fmt: skip
"""Columns that are compared, where both frames have them."""
BINS = 10
"""Of numbers: the earlier dataset's deciles; of few rows three parts or more, of ten rows each."""
MOST_KINDS = 20
"""Categories with a bin of their own, the most frequent ones; the rest is one more."""
CHANCE = 0.001
"""How often two samples of one distribution are let pass for different ones."""
UNKNOWN, OTHERS = "unknown", "others"


class Bin(Record, frozen=True, kw_only=True):
    name: str
    before: float
    """Share of the earlier rows."""
    after: float


class Shift(Record, frozen=True, kw_only=True):
    column: str
    kind: Literal["number", "category"]
    before: int
    """Rows of which it is known."""
    after: int
    psi: float | None = None
    """Population stability index (Siddiqi 2006): the sum of (a - b) ln(a / b) over the bins."""
    chance: float | None = None
    """The PSI that two samples of this size from one distribution stay below, but for `CHANCE`."""
    ks: float | None = None
    """Largest distance of the two distribution functions (Kolmogorov 1933, Smirnov 1939). None = no
    number."""
    js: float | None = None
    """Jensen-Shannon divergence in bits (Lin 1991): 0 = the same, 1 = nothing in common."""
    bins: tuple[Bin, ...] = ()
    reason: str | None = None
    """Why it was not compared."""

    def beyond(self, bound: float) -> bool:
        """Whether its PSI is at least `bound`, and more than chance would give."""
        return self.psi is not None and self.psi >= max(bound, self.chance or 0.0)


def shifts(
    before: "pl.DataFrame", after: "pl.DataFrame", columns: Sequence[str] = COMPARED
) -> tuple[Shift, ...]:
    """One for each of `columns` that either frame has, in this order."""
    there = [name for name in columns if name in before.columns or name in after.columns]
    return tuple(_shift(name, _column(before, name), _column(after, name)) for name in there)


def _column(frame: "pl.DataFrame", name: str) -> "pl.Series":
    import polars as pl

    if name not in frame.columns:
        return pl.Series(name, [None] * frame.height, dtype=pl.String)
    found = frame[name]
    # Each run's rollouts are a source of their own: as such they would always be new.
    return found.str.replace("^(rollout|evaluation):.*", "${1}") if name == "source" else found


def _shift(name: str, before: "pl.Series", after: "pl.Series") -> Shift:
    sides = before.drop_nulls(), after.drop_nulls()
    numeric = all(side.dtype.is_numeric() for side in (before, after))
    about: dict[str, Any] = {
        "column": name,
        "kind": "number" if numeric else "category",
        "before": sides[0].len(),
        "after": sides[1].len(),
    }
    if not all(side.len() for side in sides):
        if not any(side.len() for side in sides):
            return Shift(**about, reason="neither dataset says it")
        missing = "earlier" if not sides[0].len() else "new"
        return Shift(**about, reason=f"the {missing} dataset does not say it")
    names, counts = _numbers(before, after) if numeric else _kinds(before, after)
    totals = [sum(count) for count in counts]
    psi, chance = _stability(counts)
    return Shift(
        **about,
        psi=psi,
        chance=chance,
        ks=_distance(*sides) if numeric else None,
        js=_divergence(counts),
        bins=tuple(
            Bin(name=one, before=b / totals[0], after=a / totals[1])
            for one, b, a in zip(names, *counts, strict=True)
        ),
    )


Counts = tuple[list[int], list[int]]
"""Rows of each bin, before and after."""


def _kinds(before: "pl.Series", after: "pl.Series") -> tuple[list[str], Counts]:
    sides = [Counter(_spelled(side)) for side in (before, after)]
    known = Counter(sides[0]) + Counter(sides[1])
    ranked = sorted(known, key=lambda one: (-known[one], one))
    named = ranked[:MOST_KINDS]
    counts = tuple([side[one] for one in named] for side in sides)
    if len(ranked) > MOST_KINDS:
        for side, count in zip(sides, counts, strict=True):
            count.append(side.total() - sum(count))
        named = [*named, OTHERS]
    return named, (counts[0], counts[1])


def _spelled(side: "pl.Series") -> dict[str, int]:
    import polars as pl

    found = side.cast(pl.String).fill_null(UNKNOWN).value_counts(name="rows")
    return dict(found.iter_rows())


def _numbers(before: "pl.Series", after: "pl.Series") -> tuple[list[str], Counts]:
    """Bins between the earlier side's deciles, those that coincide taken together. Of few values
    each has a bin of its own."""
    import numpy as np
    import polars as pl

    if pl.concat([side.cast(pl.Float64) for side in (before, after)]).n_unique() <= BINS:
        return _kinds(before, after)
    sides = [side.drop_nulls().to_numpy().astype(float) for side in (before, after)]
    bins = max(3, min(BINS, min(side.size for side in sides) // 10))
    inner = np.unique(np.quantile(sides[0], np.arange(1, bins) / bins, method="higher"))
    places = [np.searchsorted(inner, side, side="left") for side in sides]
    counts = [np.bincount(place, minlength=inner.size + 1).tolist() for place in places]
    ends = [f"{edge:g}" for edge in inner]
    between = [f"{low} to {high}" for low, high in pairwise(ends)]
    names = [f"to {ends[0]}", *between, f"above {ends[-1]}"]
    unknown = [side.null_count() for side in (before, after)]
    if any(unknown):
        names.append(UNKNOWN)
        for count, some in zip(counts, unknown, strict=True):
            count.append(some)
    return names, (counts[0], counts[1])


def _stability(counts: Counts) -> tuple[float, float]:
    """PSI, and what chance makes of it: of N and M rows in B bins from one distribution it is
    (1/N + 1/M) chi-squared with B - 1 degrees of freedom (Yurdakul and Naranjo 2020).

    Half a row more in every bin keeps an empty one finite.
    """
    import numpy as np

    rows = [sum(count) for count in counts]
    b, a = ((np.array(count) + 0.5) / (sum(count) + 0.5 * len(count)) for count in counts)
    freedom = len(counts[0]) - 1
    chance = (1 / rows[0] + 1 / rows[1]) * _chi_squared(freedom) if freedom else 0.0
    return float(np.sum((a - b) * np.log(a / b))), chance


def _chi_squared(freedom: int) -> float:
    """Its quantile at 1 - CHANCE, by the cube of a normal one (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * freedom)
    z = NormalDist().inv_cdf(1 - CHANCE)
    return float(freedom * (1 - spread + z * sqrt(spread)) ** 3)


def _distance(before: "pl.Series", after: "pl.Series") -> float:
    import numpy as np

    sides = [np.sort(side.to_numpy().astype(float)) for side in (before, after)]
    every = np.concatenate(sides)
    b, a = (np.searchsorted(side, every, side="right") / side.size for side in sides)
    return float(np.max(np.abs(b - a)))


def _divergence(counts: Counts) -> float:
    import numpy as np

    b, a = (np.array(count) / sum(count) for count in counts)
    middle = (b + a) / 2

    def against(side: Any) -> Any:
        known = side > 0
        return np.sum(side[known] * np.log2(side[known] / middle[known]))

    return float((against(b) + against(a)) / 2)
