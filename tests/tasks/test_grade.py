"""Recorded answers are graded: those that users saw, and those that shadows gave."""

from pathlib import Path

import pytest

from app.commands.grade_ import _lines
from environments.define import Environment, reward
from flywheel.home import Home
from flywheel.records import Feedback, Grade, Problem
from storage.committer import commit
from storage.inbox import Inbox
from storage.queries import traces
from tasks.grade import posed_by, why_null
from tests.storage.test_released import drawn

LATEST = 1 << 40


class Support(Environment):
    @reward()
    def right(self, answer: str, problem: Problem) -> bool:
        return bool(answer == problem.answer)


def test_a_shadow_is_asked_what_it_copies_and_judged_by_what_people_said_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
    seen, other = (drawn(name, "support-v1", 1.0) for name in ("seen", "other"))
    copy = drawn("copy", "support-v2", 1.0, shadow_of={"trace": seen.id, "span": "seen"})
    odd = drawn("odd", "support-v2", 1.0, shadow_of={"trace": "gone", "span": 7})
    said = Feedback(
        project="support", target="seen", target_kind="conversation", name="right",
        value="it is so", kind="demonstration", by="ann", at=1,
    )  # fmt: skip
    Inbox(home).append([seen, other, copy, odd, said])
    commit(home)
    (batch,) = traces(home, project="support")
    found = {one.trace.id: one.problem for one in posed_by(Support(), batch, LATEST)}
    answers = {id: problem and problem.answer for id, problem in found.items()}
    assert answers == {seen.id: "it is so", copy.id: "it is so", other.id: None, odd.id: None}
    mine, its = found[copy.id], found[seen.id]
    assert mine and its and mine.id == its.id


def test_why_traces_could_not_be_graded_is_counted_by_trace() -> None:
    def graded(*reasons: str | None, weight: float = 1.0) -> list[Grade]:
        return [
            Grade(trace_id="t", reward=f"r{place}", value=None, weight=weight, reason=reason)
            for place, reason in enumerate(reasons)
        ]

    assert why_null(graded("no problem is known\nfor it", "another")) == "no problem is known"
    assert why_null(graded(None)) == why_null(graded("informs only", weight=0.0)) == "no reward"
    told = {"graded": 1, "not_gradable": 2, "reasons": {"no problem": 2}, "judge": None}
    assert list(_lines(told, None, None)) == ["graded 1, not gradable 2", "  2 no problem"]
