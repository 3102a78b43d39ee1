"""Always-valid tests of a canary: a look after every answer costs no confidence. Pure.

Two questions, one tool: a capital that bets against a hypothesis. While the hypothesis holds, no
bet can be expected to gain, so that the capital ever reaches 1/alpha with probability at most alpha
(Ville's inequality), however often and whenever one looks.

**Rates** (`Rates`): does the challenger fail more often than the champion does by over `slack`?
Exact for any sample size. Betting the share g of the capital that an event of rate at most t
happens multiplies it by 1 - g + g/t where it does, by 1 - g where not. Bets g_j side by side,
each with a k-th of the capital, give after x events in n answers

    E(t) = 1/k sum_j (1 - g_j + g_j/t)^x (1 - g_j)^(n - x)

an e-process for `rate <= t` that falls in t. The same on the champion's answers without an event
bounds its rate from above: U = sup{u: E'(u) < 2/alpha}. The challenger is worse once
E(U + slack) >= 2/alpha; each half errs with probability alpha/2 at most. (Waudby-Smith & Ramdas,
"Estimating means of bounded random variables by betting", JRSS B 2024, section 4; the mixture of
bets is their section 5.6's, the two halves are a union bound.)

**Reward** (`difference`): challenger's less champion's mean. With p the logged probability that
unit i goes to the challenger, A whether it did, Y in [0, 1] its reward, m1 and m0 the arms' means
of the units before it,

    f = m1 - m0 + A (Y - m1) / p - (1 - A) (Y - m0) / (1 - p)

has the expectation mu1 - mu0 whatever m1, m0 are (augmented inverse propensity weighting; Robins,
Rotnitzky & Zhao 1994). Its lower confidence sequence is every m that the capital
prod_i (1 + l_i (f_i - m)) has not reached 1/alpha against, l_i in [0, 1/2 / (m - low_i)] chosen
from the units before i and low_i the least that f_i could have been (Waudby-Smith, Wu, Ramdas,
Karampatziakis & Mineiro, "Anytime-valid off-policy inference for contextual bandits", 2024, eqs. 15
and 16; l_i is "Betting" eq. 27, aGRAPA). The upper one is the lower one of -f.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_BETS = (0.97, 0.9, 0.75, 0.5, 0.3, 0.15, 0.08, 0.04, 0.02, 0.01, 0.005)
"""Shares of the capital; small ones find small differences, large ones find great ones at once."""
_HALVINGS = 30
_BOLDEST = 0.5
"""Of the bet that could lose all at once."""
_LOOKS = 512
"""Points of the curve that `difference` gives, at most."""


class Counts(msgspec.Struct):
    """Of one arm: answers, and those with the event."""

    n: int = 0
    x: int = 0

    def add(self, event: bool) -> None:
        self.n += 1
        self.x += event


class Rates(msgspec.Struct):
    """An event's rate in both arms, as it goes."""

    champion: Counts = msgspec.field(default_factory=Counts)
    challenger: Counts = msgspec.field(default_factory=Counts)

    def log_evidence(self, slack: float, alpha: float) -> float:
        """Logarithm of the capital against "the challenger's rate is at most the champion's plus
        `slack`", less what it must reach: 0 or more is a verdict that errs with probability
        `alpha` at most, over all looks together."""
        bound = upper_rate(self.champion, alpha / 2) + slack
        if bound >= 1:
            return -math.inf
        return _log_capital(self.challenger.x, self.challenger.n, bound) - math.log(2 / alpha)


def upper_rate(counts: Counts, alpha: float) -> float:
    """Above the true rate at all looks, but for a probability of `alpha`. 1 = nothing is known."""
    if not counts.n:
        return 1.0
    low, high = counts.x / counts.n, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        against = _log_capital(counts.n - counts.x, counts.n, max(1 - middle, 1e-12))
        if against < math.log(1 / alpha):
            low = middle
        else:
            high = middle
    return high


def _log_capital(x: int, n: int, rate: float) -> float:
    """log E(rate): against "at most `rate`", after x events of n."""
    logs = [
        x * math.log1p(g * (1 / rate - 1)) + (n - x) * math.log1p(-g) - math.log(len(_BETS))
        for g in _BETS
    ]
    most = max(logs)
    return most + math.log(sum(math.exp(one - most) for one in logs))


class Unit(NamedTuple):
    """What was assigned to an arm as one: a conversation, or a user without one."""

    challenger: bool
    probability: float
    """That it went to the challenger, above 0 and below 1."""
    reward: float
    """0 to 1."""


class Interval(NamedTuple):
    units: int
    """After how many, both arms together."""
    difference: float | None
    """Challenger's mean reward less the champion's; None = one of them has no unit."""
    low: float
    high: float
    """Both ends hold at all looks together, with the confidence asked for."""


def difference(
    units: Sequence[Unit], confidence: float, *, grid: int = 801
) -> tuple[Interval, list[Interval]]:
    """The interval after the last unit, and how it came to be: up to 512 looks on the way.

    The ends only ever close in. A look that finds them crossed has met something that no steady
    difference explains; the interval is then the point between them.

    Args:
        units: in the order in which they were counted, which must not change between looks.
        grid: differences from -1 to 1 that are bet against.
    """
    import numpy as np

    if not units:
        return Interval(0, None, -1.0, 1.0), []
    pseudo, low, high = _pseudo_outcomes(units)
    points = np.linspace(-1.0, 1.0, grid)
    threshold = math.log(2 / (1 - confidence))
    stops = _stops(len(units))
    lows = _closing(pseudo, low, points, threshold, stops)
    highs = [-one for one in _closing(-pseudo, -high, points, threshold, stops)]
    means = _means(units)
    curve = []
    for stop, bottom, top in zip(stops, lows, highs, strict=True):
        middle = (bottom + top) / 2
        ends = (bottom, top) if bottom <= top else (middle, middle)
        curve.append(Interval(stop, means[stop - 1], *ends))
    return curve[-1], curve


def paired(differences: Sequence[float], confidence: float, *, grid: int = 801) -> Interval:
    """Of the mean of differences from -1 to 1 between two answers to one request, by the same bets.

    Args:
        differences: in an order that does not change between looks.
    """
    import numpy as np

    if not differences:
        return Interval(0, None, -1.0, 1.0)
    values = np.clip(np.asarray(differences, dtype=float), -1.0, 1.0)
    points, least = np.linspace(-1.0, 1.0, grid), np.full(len(values), -1.0)
    threshold, stops = math.log(2 / (1 - confidence)), _stops(len(values))
    low = _closing(values, least, points, threshold, stops)[-1]
    high = -_closing(-values, least, points, threshold, stops)[-1]
    middle = (low + high) / 2
    ends = (low, high) if low <= high else (middle, middle)
    return Interval(len(values), float(values.mean()), *ends)


def _stops(count: int) -> list[int]:
    step = math.ceil(count / _LOOKS)
    return sorted({*range(step, count + 1, step), count})


def _pseudo_outcomes(units: Sequence[Unit]) -> tuple["Array", "Array", "Array"]:
    """f of each unit, and the least and the greatest that it could have been; [units] each."""
    import numpy as np

    made = np.empty((3, len(units)))
    sums, counts = [0.5, 0.5], [1, 1]  # [champion, challenger]; begins as one unit of a half
    for place, (challenger, p, reward) in enumerate(units):
        y = min(max(reward, 0.0), 1.0)
        m0, m1 = sums[0] / counts[0], sums[1] / counts[1]
        drawn = (y - m1) / p if challenger else -(y - m0) / (1 - p)
        made[:, place] = m1 - m0
        made[0, place] += drawn
        made[1, place] += min(-m1 / p, -(1 - m0) / (1 - p))
        made[2, place] += max((1 - m1) / p, m0 / (1 - p))
        sums[challenger] += y
        counts[challenger] += 1
    return made[0], made[1], made[2]


def _closing(
    pseudo: "Array", low: "Array", points: "Array", threshold: float, stops: list[int]
) -> list[float]:
    """The lower confidence sequence of the mean of `pseudo` at each of `stops`.

    Units go in blocks: the matrix of capitals is [block, points].
    """
    import numpy as np

    count = np.arange(1, len(pseudo) + 1)
    # Mean and variance of what came before each unit; they begin as one outcome of 0 with the
    # spread of a unit that went to the rarer arm.
    means = np.concatenate([[0.0], np.cumsum(pseudo) / (count + 1)[: len(pseudo)]])[:-1]
    squares = np.concatenate([[0.0], np.cumsum((pseudo - means) ** 2)])[:-1]
    variances = (squares + np.maximum(-low, 1.0)) / count
    capital, most = np.zeros(len(points)), np.full(len(points), -np.inf)
    ends, begin = [], 0
    for stop in stops:
        part = slice(begin, stop)
        gain = means[part, None] - points
        bets = gain / (variances[part, None] + gain**2)
        bets = np.clip(bets, 0.0, _BOLDEST / np.maximum(points - low[part, None], 1e-9))
        steps = np.cumsum(np.log1p(bets * (pseudo[part, None] - points)), axis=0)
        most = np.maximum(most, capital + steps.max(axis=0))
        capital, begin = capital + steps[-1], stop
        held = np.flatnonzero(most < threshold)
        # What lies between a point that is refuted and the next one is not refuted.
        ends.append(float(points[max(held[0] - 1, 0)]) if len(held) else 1.0)
    return ends


def _means(units: Sequence[Unit]) -> list[float | None]:
    """After each unit, the difference of the arms' plain means."""
    sums, counts, found = [0.0, 0.0], [0, 0], list[float | None]()
    for one in units:
        sums[one.challenger] += min(max(one.reward, 0.0), 1.0)
        counts[one.challenger] += 1
        both = counts[0] and counts[1]
        found.append(sums[1] / counts[1] - sums[0] / counts[0] if both else None)
    return found
