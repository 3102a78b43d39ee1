"""Logged choices of a real store: which of them speak of two deployments."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.records import Choice, Grade, ModelCall, Span, Trace, say, trace_id
from storage.committer import commit
from storage.inbox import Inbox
from storage.served import drawn, recent
from tasks.estimate_logged import drawn_arm, logged_answers
from tasks.turns import Turn

SORTING = Path(__file__).resolve().parents[1] / "sorting"
OLD, NEW, OTHER = "sorting-v0", "sorting-v1", "sorting-v7"


def served(
    number: int, chosen: str, *, by: str = "", challenger: str = NEW, source: str = "gateway",
    user: str | None = None,
) -> Trace:  # fmt: skip
    among = {OLD: 0.75, challenger: 0.25}
    call = ModelCall(
        input=(say("user", f"3 1 {number}"),),
        choices=(Choice(message=say("assistant", "1 3"), finish_reason="stop"),),
        deployment=by or chosen,
        routing_probability=among[chosen],
    )
    drawing = {"drawn": {"chosen": chosen, "among": among}}
    return Trace(
        id=trace_id("sorting", source, str(number)), project="sorting", source=source,
        external_id=str(number), origin="production", user=user,
        spans=(Span(id="s", kind="model", start=number + 1, call=call, attributes=drawing),),
    )  # fmt: skip


def test_only_whole_answers_that_were_drawn_between_the_two_speak_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path))
    home = Home(tmp_path)
    traces = [
        served(0, OLD), served(1, NEW), served(2, OTHER, challenger=OTHER), served(3, NEW, by=OLD),
        served(4, NEW, source="shadow"), served(5, OLD),
        served(6, OLD, user="ann"), served(7, OLD, user="ann"),
    ]  # fmt: skip
    known = [*traces[:5], *traces[6:]]
    grades = [Grade(trace_id=one.id, reward="correct", value=1.0) for one in known]
    Inbox(home).append([*traces, *grades])
    commit(home)
    assert recent(home, "sorting", limit=5)[2:] == [traces[5].id, traces[3].id, traces[2].id]
    assert traces[4].id not in drawn(home, "sorting", limit=10), "nobody saw what a shadow said"
    start = Deployment(name=OLD, project="sorting", version=0, base_model="base")
    turn = Turn(run_id="r", project="sorting", folder=str(SORTING), start=start,
                configuration="", sequence=0, snapshot="")  # fmt: skip
    counts = Counter[str]()
    found = {one.id: (one.arm, one.probability) for one in logged_answers(turn, NEW, counts)}
    assert found.pop(traces[7].id, None) or found.pop(traces[6].id), "one word a user"
    assert found == {traces[0].id: (OLD, 0.75), traces[1].id: (NEW, 0.25)}
    assert counts == {
        "others_tried": 1, "several_answered": 1, "not_graded": 1, "drawn_together": 1,
    }  # fmt: skip


def test_a_trace_that_says_nothing_of_its_choice_is_no_evidence() -> None:
    plain = Trace(id="t", project="p", source="s", external_id="e", origin="production")
    assert drawn_arm(plain, {OLD, NEW}) == "others_tried"


@pytest.mark.parametrize("odd", [None, 0, 0.0, -1, 1.5, "much", True, float("nan")])
def test_a_chance_that_is_none_is_no_evidence(odd: object) -> None:
    said = served(1, NEW)
    (span,) = said.spans
    drawing = {"drawn": {"chosen": NEW, "among": {OLD: 0.75, NEW: odd}}}
    told = msgspec.structs.replace(span, attributes=drawing)
    assert drawn_arm(msgspec.structs.replace(said, spans=(told,)), {OLD, NEW}) == "others_tried"
