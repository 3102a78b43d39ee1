from typing import Any

from flywheel.project import GateSection
from tasks.estimate_verdict import estimates_of, judge, replay_said

GATE = GateSection(margin=0.05)


def rows(count: int, served: float, candidate: float | None, ended: str = "answered") -> list[Any]:
    return [
        {"trace": f"{ended}-{served}-{candidate}-{number}", "slice": "all", "by": "p-v0",
         "ended": ended, "served": served, "candidate": candidate}
        for number in range(count)
    ]  # fmt: skip


def test_what_left_the_record_enters_no_mean_and_is_counted() -> None:
    said = replay_said([*rows(40, 0.0, 1.0), *rows(20, 1.0, 1.0), *rows(5, 1.0, None, "diverged")],
                       GATE)  # fmt: skip
    assert (said["asked"], said["compared"], said["diverged"]) == (65, 60, 5)
    assert said["verdict"] == "better" and said["overall"]["difference"] == 40 / 60


def test_too_many_that_left_the_record_are_no_verdict() -> None:
    said = replay_said([*rows(40, 0.0, 1.0), *rows(30, 1.0, None, "diverged")], GATE)
    assert said["verdict"] == "cannot tell" and "30 diverged" in said["said"]


def test_too_few_conversations_are_no_verdict() -> None:
    assert replay_said(rows(29, 0.0, 1.0), GATE)["verdict"] == "cannot tell"
    assert replay_said([], GATE)["verdict"] == "cannot tell"


def test_an_interval_says_what_it_says() -> None:
    def of(low: float, high: float) -> str:
        return judge({"difference": (low + high) / 2, "low": low, "high": high}, 0.05)[0]

    assert of(0.01, 0.1) == "better"
    assert of(-0.2, -0.01) == "worse"
    assert of(-0.04, 0.1) == "not worse"
    assert of(-0.1, 0.1) == "cannot tell"


def test_two_estimates_that_contradict_each_other_conclude_nothing() -> None:
    worse = {"difference": -0.2, "low": -0.3, "high": -0.1, "reason": None}
    found = estimates_of(
        candidate="p-v1", champion="p-v0", rows=[*rows(40, 0.0, 1.0), *rows(20, 1.0, 1.0)],
        looked_at={}, logged=worse, gate=GATE, tokens=(None, None),
    )  # fmt: skip
    assert found.verdict == "cannot tell"
    assert "better" in found.reason and "worse" in found.reason
