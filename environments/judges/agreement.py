"""How far two raters agree beyond chance: Cohen's kappa, with its interval.

Enters: a confusion table, people's labels down and the judge's across, worst to best. Leave: kappa
and the ends of its interval, or why there is none. Invariant: equal tables give equal numbers.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from flywheel.ids import seed_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 10_000
Table = Sequence[Sequence[int]]


class Agreement(NamedTuple):
    kappa: float | None
    low: float | None
    high: float | None
    reason: str | None = None
    """Why kappa is None."""


def confusion(pairs: Sequence[tuple[int, int]], labels: int) -> tuple[tuple[int, ...], ...]:
    """Counts of (people's label, judge's label)."""
    table = [[0] * labels for _ in range(labels)]
    for people, judge in pairs:
        table[people][judge] += 1
    return tuple(tuple(row) for row in table)


def agreement(table: Table, confidence: float = 0.95) -> Agreement:
    """Cohen's kappa of a square table; of three labels or more weighted by their distance.

    kappa = 1 - sum(w * observed) / sum(w * expected), where expected is the product of the margins
    over n, and w = |i - j| / (k - 1): 0 on the diagonal, 1 between the ends. With two labels this
    is the unweighted kappa. Cohen, "A Coefficient of Agreement for Nominal Scales", Educational
    and Psychological Measurement 20 (1960); "Weighted Kappa", Psychological Bulletin 70 (1968).
    The interval: quantiles of kappa over tables of n items drawn anew, with replacement (Efron &
    Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13); tables in which one rater
    gave one label only have no kappa, and where more than a tenth are such there is no interval.
    """
    import numpy as np

    counts = np.asarray(table, dtype=np.float64)
    n = int(counts.sum())
    if not n:
        return Agreement(None, None, None, "nothing was judged by both")
    (found,) = _kappas(counts[None])
    if math.isnan(found):
        return Agreement(None, None, None, f"people gave all {n} answers one label, as the judge "
                         "did: more answers of the other kind must be reviewed")  # fmt: skip
    generator = np.random.default_rng(seed_of([list(row) for row in table], confidence))
    drawn = generator.multinomial(n, counts.ravel() / n, size=RESAMPLES)
    values = _kappas(drawn.reshape(-1, *counts.shape).astype(np.float64))
    known = values[~np.isnan(values)]
    if len(known) < 0.9 * RESAMPLES:
        return Agreement(float(found), None, None)
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return Agreement(float(found), float(low), float(high))


def _kappas(counts: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Of each table of `counts` [tables, labels, labels]; not a number where chance alone would
    agree as well."""
    import numpy as np

    labels = counts.shape[1]
    places = np.arange(labels)
    weights = np.abs(places[:, None] - places[None, :]) / max(labels - 1, 1)
    margins = counts.sum(2)[:, :, None] * counts.sum(1)[:, None, :]
    expected = (weights * margins).sum((1, 2)) / counts.sum((1, 2))
    observed = (weights * counts).sum((1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        found: NDArray[np.float64] = np.where(expected > 0, 1 - observed / expected, np.nan)
    return found
