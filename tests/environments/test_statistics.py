import numpy as np
import pytest
from scipy import stats

from environments.statistics import (
    Comparison,
    bootstrap_mean,
    compare,
    decide,
    mean_interval,
)
from flywheel.lineage import Evaluation, SliceResult
from flywheel.project import GateSection

GATE = GateSection(accept="either", margin=0.02, cheaper=0.1, min_problems=16)


def result(
    low: float | None, high: float | None, *, name: str = "overall", problems: int = 48
) -> SliceResult:
    middle = None if low is None or high is None else (low + high) / 2
    return SliceResult(
        name=name, problems=problems, champion=0.4, candidate=0.6, difference=middle, low=low,
        high=high,
    )  # fmt: skip


def evaluation(overall: SliceResult, *slices: SliceResult, **over: object) -> Evaluation:
    fields: dict[str, object] = {
        "id": "e", "project": "p", "run_id": "r", "champion": "p-v0", "candidate": "p-v1",
        "champion_tokens": 20.0, "candidate_tokens": 20.0, "champion_latency_s": 1.0,
        "candidate_latency_s": 1.0,
    }  # fmt: skip
    return Evaluation(overall=overall, slices=slices, **{**fields, **over})  # type: ignore[arg-type]


def test_differences_are_paired_by_problem_and_each_problem_counts_once() -> None:
    champion = {"a": [0.0, 1.0], "b": [0.0], "c": [None], "d": [1.0]}
    candidate = {"a": [1.0], "b": [1.0, 1.0, 1.0, None], "c": [1.0], "e": [1.0]}
    found = compare(champion, candidate, {"a": "x", "b": "y"}, slice_min_problems=2)
    assert (found.overall.problems, found.ungraded) == (2, 2)
    assert (found.overall.champion, found.overall.candidate) == (0.25, 1.0)
    assert found.overall.difference == 0.75
    assert [(part.name, part.difference, part.low) for part in found.slices] == [
        ("x", 0.5, None),
        ("y", 1.0, None),
    ]


def test_the_interval_matches_an_independent_bootstrap() -> None:
    differences = np.random.default_rng(5).normal(0.1, 0.5, 200)
    low, high = bootstrap_mean(list(differences), 0.95, seed=1)
    peer = stats.bootstrap(
        (differences,), np.mean, n_resamples=20_000, method="percentile",
        confidence_level=0.95, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert low == pytest.approx(peer.low, abs=0.01)
    assert high == pytest.approx(peer.high, abs=0.01)
    assert low < peer.low and high > peer.high


def coverage(n: int, runs: int, draw: str) -> float:
    generator = np.random.default_rng(11)
    hits = 0
    for run in range(runs):
        if draw == "paired":
            values, truth = generator.choice([-1.0, 0.0, 1.0], n, p=[0.1, 0.6, 0.3]), 0.2
        else:
            values, truth = generator.exponential(1.0, n), 1.0
        low, high = bootstrap_mean(list(values), 0.95, seed=run, resamples=1000)
        hits += low <= truth <= high
    return hits / runs


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    assert 0.93 <= coverage(48, 1500, "paired") <= 0.975
    assert 0.92 <= coverage(16, 1500, "paired") <= 0.985
    assert 0.90 <= coverage(48, 1500, "skewed") <= 0.975


@pytest.mark.slow
def test_a_candidate_that_is_no_better_seldom_passes_as_better() -> None:
    generator = np.random.default_rng(3)
    gate = GateSection(accept="better")
    passed = 0
    for run in range(400):
        names = [f"{run}-{k}" for k in range(48)]
        champion = {name: [float(generator.random() < 0.42)] for name in names}
        candidate = {name: [float(generator.random() < 0.42)] for name in names}
        found = compare(champion, candidate, {})
        passed += decide(evaluation(found.overall, *found.slices), gate).passed
    assert passed / 400 <= 0.05


def test_equal_input_in_any_order_gives_equal_numbers() -> None:
    generator = np.random.default_rng(0)
    champion = {f"p{k}": [float(generator.random())] for k in range(30)}
    candidate = {f"p{k}": [float(generator.random())] for k in range(30)}
    slices = {f"p{k}": str(k % 3) for k in range(30)}
    backwards = dict(reversed(champion.items()))
    first = compare(champion, candidate, slices)
    assert first == compare(backwards, candidate, slices)
    assert len({part.low for part in first.slices}) == 3


def test_nothing_in_common_is_not_known() -> None:
    found = compare({"a": [1.0]}, {"b": [1.0]}, {})
    assert found == Comparison(
        SliceResult(name="overall", problems=0, champion=None, candidate=None, difference=None,
                    low=None, high=None), (), 0,
    )  # fmt: skip


def test_mean_interval_of_rights_and_wrongs_has_width_even_when_all_agree() -> None:
    found = mean_interval([1.0] * 16 + [None])
    assert (found.mean, found.known, found.missing) == (1.0, 16, 1)
    assert found.low == pytest.approx(0.8064, abs=1e-3) and found.high == 1.0
    assert mean_interval([]) == (None, None, None, 0, 0)
    assert mean_interval([0.5, None]) == (0.5, None, None, 1, 1)
    parts = mean_interval([0.1, 0.5, 0.9, 0.4])
    assert parts.low is not None and parts.high is not None
    assert parts.low < 0.475 < parts.high


def test_memory_stays_bounded_for_large_samples() -> None:
    low, high = bootstrap_mean([0.0, 1.0] * 20_000, 0.95, seed=0, resamples=300)
    assert 0.49 < low < 0.5 < high < 0.51


@pytest.mark.parametrize(
    ("given", "accept", "passed", "words"),
    [
        (evaluation(result(0.01, 0.4)), "either", True, "better"),
        (evaluation(result(0.01, 0.4)), "better", True, "better"),
        (evaluation(result(0.0, 0.4)), "better", False, "not shown to be better"),
        (evaluation(result(0.01, 0.4)), "not_worse_and_cheaper", False, "0% of tokens saved"),
        (evaluation(result(-0.01, 0.4), candidate_tokens=17.0), "either", True, "15% cheaper"),
        (evaluation(result(-0.01, 0.4), candidate_tokens=17.0), "better", False, "not shown"),
        (evaluation(result(-0.02, 0.4), candidate_tokens=17.0), "either", False, "not shown"),
        (evaluation(result(-0.01, 0.4), candidate_tokens=19.0), "either", False, "5% of tokens"),
        (evaluation(result(-0.01, 0.4), candidate_tokens=None), "either", False, "costs is not"),
        (evaluation(result(0.1, 0.4, problems=15)), "either", False, "too few problems: 15"),
        (evaluation(result(None, None)), "either", False, "not known"),
        (
            evaluation(result(0.1, 0.4), result(-0.5, -0.1, name="partner", problems=5)),
            "either", False, "'partner'",
        ),
        (
            evaluation(result(0.1, 0.4), result(-0.5, -0.1, name="partner", problems=4)),
            "either", True, "better",
        ),
        (
            evaluation(result(0.1, 0.4), result(-0.5, 0.0, name="partner", problems=9)),
            "either", True, "better",
        ),
        (evaluation(result(0.1, 0.4), candidate_latency_s=2.1), "either", False, "too slow"),
        (evaluation(result(0.1, 0.4), candidate_latency_s=None), "either", False, "not measured"),
        (evaluation(result(0.1, 0.4), ungraded=30), "either", False, "could not be graded"),
        (evaluation(result(0.1, 0.4), ungraded=5), "either", True, "better"),
    ],
)  # fmt: skip
def test_the_gate(given: Evaluation, accept: str, passed: bool, words: str) -> None:
    verdict = decide(given, GATE.model_copy(update={"accept": accept}))
    assert verdict.passed is passed
    assert words in verdict.reason


def test_a_gate_without_a_latency_bound_does_not_ask_for_latency() -> None:
    gate = GATE.model_copy(update={"max_latency_ratio": None})
    assert decide(evaluation(result(0.1, 0.4), candidate_latency_s=None), gate).passed
