from typing import Any

from flywheel.lineage import Evaluation, SliceResult
from flywheel.project import GateSection
from tasks.variant_gate import ruling, speed_of

GATE = GateSection(margin=0.05, cheaper=0.1)


def evaluation(low: float, high: float) -> Evaluation:
    overall = SliceResult(
        name="overall", problems=40, champion=0.5, candidate=0.5, difference=(low + high) / 2,
        low=low, high=high,
    )  # fmt: skip
    return Evaluation(id="e", project="p", run_id="r", champion="p-v1", candidate="p-v2",
                      overall=overall, champion_latency_s=1.0, candidate_latency_s=1.0)  # fmt: skip


def speed(saved: float, low: float) -> dict[str, Any]:
    return {"prompts": 24, "saved": saved, "low": low, "high": saved + 0.1}


def test_a_variant_passes_where_it_is_not_worse_and_surely_cheaper() -> None:
    passed, reason = ruling(evaluation(-0.02, 0.02), GATE, speed(0.3, 0.2))
    assert passed and "not worse and 30% cheaper" in reason
    assert not ruling(evaluation(-0.2, 0.02), GATE, speed(0.3, 0.2))[0]
    assert not ruling(evaluation(-0.2, -0.1), GATE, speed(0.9, 0.8))[0]


def test_one_that_saves_too_little_or_perhaps_nothing_is_refused() -> None:
    for slow in (speed(0.05, 0.02), speed(0.3, -0.01)):
        passed, reason = ruling(evaluation(-0.01, 0.01), GATE, slow)
        assert not passed and reason.startswith("not cheaper")
    assert not ruling(evaluation(0, 0), GATE, {"saved": None, "low": None})[0]


def test_the_share_saved_is_of_the_same_prompts_a_token() -> None:
    champion, candidate = [(1.0, 10), (4.0, 20), (1.0, 0)], [(0.5, 10), (1.0, 10), (9.0, 5)]
    found = speed_of(champion, candidate, 0.9)
    assert found["prompts"] == 2, "an answer without a token says nothing"
    assert found["saved"] == 0.5 and found["low"] == found["high"] == 0.5
    assert speed_of([], [], 0.9)["saved"] is None
