"""Compares two models on the same problems, and decides.

Enter: the rewards of each problem's answers, by problem id. Leave: means, paired differences with
bootstrap intervals, and a verdict. Invariants: equal input gives equal numbers (the seed comes from
the problems), an answer that could not be graded enters no mean, and too little evidence is a
refusal, not a zero.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flywheel.ids import seed_of
from flywheel.lineage import Evaluation, SliceResult
from flywheel.project import GateSection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 10_000
MAX_UNGRADED = 0.2
"""Share of answers without a grade from which a comparison says nothing: what could not be graded
may well be what went wrong."""
_CELLS = 4_000_000
"""Resampled values held at once."""

Rewards = Mapping[str, Sequence[float | None]]
"""By problem id, the score of each answer; None = not graded."""


class Interval(NamedTuple):
    mean: float | None
    low: float | None
    """None = fewer than two values."""
    high: float | None
    known: int
    missing: int
    """Values that were None; they enter nothing."""


class Comparison(NamedTuple):
    overall: SliceResult
    slices: tuple[SliceResult, ...]
    ungraded: int
    """Answers without a grade, on either side."""


class Verdict(NamedTuple):
    passed: bool
    reason: str


def compare(
    champion: Rewards,
    candidate: Rewards,
    slices: Mapping[str, str],
    *,
    confidence: float = 0.95,
    slice_min_problems: int = 5,
) -> Comparison:
    """Candidate minus champion, paired by problem; each problem counts once, by its mean.

    A problem that either side has no graded answer for is left out of both. A slice with fewer
    than `slice_min_problems` gets no interval.
    """
    pairs = {
        problem: (ours, theirs)
        for problem in sorted(champion.keys() & candidate.keys())
        if (ours := _mean(champion[problem])) is not None
        and (theirs := _mean(candidate[problem])) is not None
    }
    names = sorted({slices.get(problem, "all") for problem in pairs})
    by_slice = {
        name: {p: pair for p, pair in pairs.items() if slices.get(p, "all") == name}
        for name in names
    }
    sides = (champion, candidate)
    return Comparison(
        overall=_result("overall", pairs, confidence, 2),
        slices=tuple(
            _result(name, by_slice[name], confidence, slice_min_problems) for name in names
        ),
        ungraded=sum(
            value is None for side in sides for values in side.values() for value in values
        ),
    )


def mean_interval(
    values: Iterable[float | None], confidence: float = 0.95, *, seed: int = 0
) -> Interval:
    """The mean of a sample of problems with its interval.

    Wilson's interval where all values are 0 or 1 (a bootstrap of "all right" would have no width);
    otherwise the bootstrap of `bootstrap_mean`.
    """
    everything = list(values)
    known = [float(value) for value in everything if value is not None]
    missing = len(everything) - len(known)
    if len(known) < 2:
        return Interval(known[0] if known else None, None, None, len(known), missing)
    if set(known) <= {0.0, 1.0}:
        from scipy.stats import binomtest

        found = binomtest(int(sum(known)), len(known)).proportion_ci(confidence, method="wilson")
        low, high = float(found.low), float(found.high)
    else:
        low, high = bootstrap_mean(known, confidence, seed=seed)
    return Interval(math.fsum(known) / len(known), low, high, len(known), missing)


def bootstrap_mean(
    values: Sequence[float], confidence: float, *, seed: int, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The expanded percentile bootstrap interval of the mean of at least two `values`.

    Resamples of the n values, with replacement, give means m*. The interval is their quantiles at p
    and 1 - p, p = Phi(-sqrt(n / (n - 1)) t), t being Student's quantile at (1 + confidence) / 2
    with n - 1 degrees of freedom: the plain percentile interval is too narrow by both factors.
    Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13, for the percentiles;
    Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69
    (2015), for the expanded ones.
    """
    import numpy as np
    from scipy.stats import norm, t

    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    tail = float(norm.cdf(-math.sqrt(n / (n - 1)) * t.ppf((1 + confidence) / 2, n - 1)))
    means = _resampled_means(sample, resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def decide(evaluation: Evaluation, gate: GateSection) -> Verdict:
    """Whether the candidate may take the champion's place; the reason is for people to read."""
    refusal = _too_little(evaluation, gate) or _harm(evaluation, gate)
    if refusal:
        return Verdict(False, refusal)
    overall = evaluation.overall
    low, high, difference = overall.low or 0.0, overall.high or 0.0, overall.difference or 0.0
    found = (
        f"difference {difference:+.3f}, {_percent(evaluation)} interval {low:+.3f} to {high:+.3f}"
    )
    saved = _saved(evaluation)
    if gate.accept != "not_worse_and_cheaper" and low > 0:
        return Verdict(True, f"better: {found}, {overall.problems} problems")
    if gate.accept != "better" and low > -gate.margin and saved is not None:
        if saved >= gate.cheaper:
            return Verdict(True, f"not worse and {saved:.0%} cheaper: {found}")
        found += f"; {saved:.0%} of tokens saved, {gate.cheaper:.0%} wanted"
    if gate.accept != "better" and saved is None:
        found += "; what an answer costs is not known"
    wanted = {
        "better": "better",
        "not_worse_and_cheaper": "not worse and cheaper",
        "either": "better, nor not worse and cheaper",
    }[gate.accept]
    return Verdict(False, f"not shown to be {wanted}: {found}, {overall.problems} problems")


def _too_little(evaluation: Evaluation, gate: GateSection) -> str | None:
    overall = evaluation.overall
    if overall.problems < gate.min_problems:
        return (
            f"too few problems: {overall.problems} graded on both sides, {gate.min_problems} needed"
        )
    if overall.difference is None or overall.low is None or overall.high is None:
        return "the difference is not known"
    answers = 2 * overall.problems * gate.samples + evaluation.ungraded
    if evaluation.ungraded > MAX_UNGRADED * answers:
        return f"too many answers could not be graded: {evaluation.ungraded} of {answers}"
    return None


def _harm(evaluation: Evaluation, gate: GateSection) -> str | None:
    for part in evaluation.slices:
        if part.problems >= gate.slice_min_problems and part.high is not None and part.high < 0:
            return (
                f"worse on slice {part.name!r}: difference {part.difference or 0:+.3f}, interval "
                f"up to {part.high:+.3f}, {part.problems} problems"
            )
    if gate.max_latency_ratio is None:
        return None
    ours, theirs = evaluation.champion_latency_s, evaluation.candidate_latency_s
    if ours is None or theirs is None:
        return "latency is bounded but was not measured"
    if theirs > gate.max_latency_ratio * ours:
        return f"too slow: {theirs:.3g} s an answer, the champion takes {ours:.3g} s"
    return None


def _saved(evaluation: Evaluation) -> float | None:
    """The share of the champion's completion tokens that the candidate saves."""
    ours, theirs = evaluation.champion_tokens, evaluation.candidate_tokens
    if ours is None or theirs is None or ours <= 0:
        return None
    return 1 - theirs / ours


def _percent(evaluation: Evaluation) -> str:
    return f"{evaluation.confidence:.0%}"


def _result(
    name: str, pairs: Mapping[str, tuple[float, float]], confidence: float, fewest: int
) -> SliceResult:
    differences = [theirs - ours for ours, theirs in pairs.values()]
    low: float | None = None
    high: float | None = None
    if len(differences) >= max(fewest, 2):
        low, high = bootstrap_mean(differences, confidence, seed=seed_of(name, list(pairs)))
    return SliceResult(
        name=name,
        problems=len(pairs),
        champion=_mean([ours for ours, _ in pairs.values()]),
        candidate=_mean([theirs for _, theirs in pairs.values()]),
        difference=_mean(differences),
        low=low,
        high=high,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _resampled_means(
    sample: "NDArray[np.float64]", resamples: int, generator: "np.random.Generator"
) -> "NDArray[np.float64]":
    """[resamples], in slabs so that memory stays bounded whatever the sample's size."""
    import numpy as np

    slab = max(1, _CELLS // len(sample))
    sizes = [min(slab, resamples - done) for done in range(0, resamples, slab)]
    drawn = (generator.integers(0, len(sample), (size, len(sample))) for size in sizes)
    return np.concatenate([sample[picked].mean(axis=1) for picked in drawn])
