from typing import Any

import msgspec
import pytest

from flywheel.errors import CorruptFile, FlywheelError
from flywheel.home import Home
from flywheel.lineage import Checkpoint, Dataset, Decision, Deployment, Run
from flywheel.records import Feedback, Grade, ModelCall, Problem, Span, Trace, say
from storage import judgements, queries, schema, snapshots
from storage.committer import commit
from storage.database import writing
from storage.inbox import Inbox
from tests.storage.store_parts import run_in_child, spoken


def stored(home: Home, *records: Any) -> None:
    Inbox(home).append(records)
    commit(home)


def all_of(home: Home, **conditions: Any) -> list[Trace]:
    return [trace for batch in queries.traces(home, **conditions) for trace in batch]


def names(home: Home, **conditions: Any) -> list[str]:
    return [trace.external_id for trace in all_of(home, **conditions)]


def said(target: str, value: Any = True, **fields: Any) -> Feedback:
    return Feedback(project="shop", target=target, value=value, **fields)


def test_a_damaged_store_is_told_as_what_it_is(home: Home) -> None:
    stored(home, *(spoken(f"t{number}", question=f"question {number}") for number in range(50)))
    data = bytearray(home.database.read_bytes())
    for place in range(0x3000, len(data)):
        data[place] ^= 0x5A
    home.database.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"flywheel\.duckdb"):
        all_of(home)


def test_a_store_that_does_not_exist_yet_reads_as_empty_and_is_not_made(home: Home) -> None:
    assert all_of(home) == []
    assert queries.counts(home, "shop") == {}
    assert judgements.grades(home) == queries.problems(home) == queries.records(home, "run") == []
    assert judgements.feedback_for(home, [spoken()]) == {}
    assert queries.sampled_problems(home, "shop") == frozenset()
    assert snapshots.snapshot(home, "shop").sequence == 0
    assert not queries.committed(home, "x")
    assert not home.root.exists()


def test_conditions_narrow_and_batches_follow_time(home: Home) -> None:
    stored(
        home,
        *[spoken(f"t{k}", question=str(k), start=100 - k) for k in range(5)],
        spoken("o", question="other", project="garden"),
        spoken("r1", origin="rollout", source="rollout:r", run_id="r", problem_id="p1"),
        spoken("r2", origin="evaluation", source="evaluation:r", run_id="r", problem_id="p2"),
    )
    assert names(home, project="shop", origin="production") == ["t4", "t3", "t2", "t1", "t0"]
    assert set(names(home, origin=["rollout", "evaluation"], run_id="r")) == {"r1", "r2"}
    assert names(home, problem_ids=["p2"]) == ["r2"]
    assert names(home, problem_ids=[]) == names(home, ids=[]) == []
    assert names(home, project="garden") == ["o"]
    batches = list(queries.traces(home, project="shop", origin=("production",), batch=2))
    assert [len(batch) for batch in batches] == [2, 2, 1]


def test_a_snapshot_sees_what_stood_then_whatever_came_since(home: Home) -> None:
    stored(home, spoken("a"), spoken("b", question="b"), said("a", 1, at=1))
    before = snapshots.snapshot(home, "shop")
    then = all_of(home, project="shop", snapshot=before)
    heard = judgements.feedback_for(home, then, snapshot=before)
    stored(
        home,
        spoken("a", span="s2", question="more", start=2_000),
        spoken("b", question="b", user="known now"),
        msgspec.structs.replace(
            spoken("b", question="b"),
            spans=(msgspec.structs.replace(spoken(question="changed").spans[0], version=5),),
        ),
        spoken("c", question="c"),
        spoken("a2", source="import:x", origin="import"),
        said("a", 2, at=2),
    )
    assert all_of(home, project="shop", snapshot=before) == then
    assert all_of(home, project="shop", snapshot=before.sequence) == then
    assert judgements.feedback_for(home, then, snapshot=before) == heard
    now = snapshots.snapshot(home, "shop")
    assert now.digest != before.digest
    latest = all_of(home, project="shop", snapshot=now)
    assert latest == all_of(home, project="shop")
    assert sorted(len(trace.spans) for trace in latest) == [1, 1, 1, 2]
    assert judgements.feedback_for(home, latest)[spoken("a").id][0].value == 2


def test_a_copy_that_came_later_is_no_copy_in_an_earlier_snapshot(home: Home) -> None:
    stored(home, spoken("e", source="import:x", origin="import", start=3))
    before = snapshots.snapshot(home, "shop")
    stored(home, spoken("g", start=1))
    assert names(home, project="shop") == ["g"]
    assert names(home, project="shop", snapshot=before) == ["e"]


def test_the_digest_is_of_recorded_traces_and_feedback_alone(home: Home) -> None:
    stored(home, spoken("a"), said("a"))
    before = snapshots.snapshot(home, "shop").digest
    stored(
        home,
        spoken("a"),
        spoken("a", source="import:again", origin="import"),
        spoken("r", origin="rollout", question="r"),
        spoken("v", origin="evaluation", question="v"),
        spoken("x", project="garden"),
        Grade(trace_id="t", reward="r", value=1.0),
    )
    assert snapshots.snapshot(home, "shop").digest == before
    stored(home, said("a", False, at=-1))
    assert snapshots.snapshot(home, "shop").digest == before
    stored(home, said("a", False, at=1))
    assert snapshots.snapshot(home, "shop").digest != before


def test_feedback_finds_its_trace_by_every_id_that_a_sender_may_know(home: Home) -> None:
    trace = spoken("ext", conversation="conv", span="chatcmpl-1")
    span = msgspec.structs.replace(trace.spans[0], attributes={"response_id": "resp-1"})
    trace = msgspec.structs.replace(trace, spans=(span,))
    by = [
        said(trace.id, 1), said("ext", 2), said("chatcmpl-1", 3), said("resp-1", 4),
        said("chatcmpl-1", 5, target_kind="span"), said("conv", 6, target_kind="conversation"),
    ]  # fmt: skip
    others = [said("conv", 7, target_kind="span"), said("ext", 8, target_kind="conversation"),
              Feedback(project="garden", target="ext", value=9), said("unknown", 10)]  # fmt: skip
    stored(home, *by, *others)
    stored(home, trace)
    found = judgements.feedback_for(home, all_of(home))
    assert sorted(one.value for one in found[trace.id]) == [1, 2, 3, 4, 5, 6]


def test_later_feedback_supersedes_by_who_said_it_about_what(home: Home) -> None:
    stored(
        home,
        spoken("a"),
        said("a", "old", at=1, by="ann"),
        said("a", "new", at=2, by="ann"),
        said("a", "bob's", at=1, by="bob"),
        said("a", 5, at=0, name="stars", by="ann"),
    )
    stored(home, said("a", "older", at=0, by="ann"), said("a", "new", at=2, by="ann"))
    (found,) = judgements.feedback_for(home, all_of(home)).values()
    assert sorted(str(one.value) for one in found) == ["5", "bob's", "new"]
    tie = [said("a", value, at=9, by="cat") for value in range(6)]
    stored(home, *tie)
    (found,) = judgements.feedback_for(home, all_of(home)).values()
    assert max(tie, key=lambda one: one.id) in found
    assert len(found) == 4


def test_what_was_said_of_a_copy_counts_for_the_trace_that_stands_for_it(home: Home) -> None:
    stored(
        home,
        spoken("g", start=1),
        spoken("e", source="import:x", origin="import", conversation="c9", span="sp9"),
        said("e", 1),
        said("c9", 2, target_kind="conversation"),
        said("sp9", 3, target_kind="span"),
    )
    (trace,) = all_of(home)
    found = judgements.feedback_for(home, [trace])[trace.id]
    assert sorted(one.value for one in found) == [1, 2, 3]


def test_the_latest_grade_of_a_reward_stands_whoever_gave_it(home: Home) -> None:
    trace = spoken()
    old, new = (
        Grade(trace_id=trace.id, reward="right", value=value, grader=grader, at=at)
        for value, grader, at in [(0.0, "v1", 1), (1.0, "v2", 2)]
    )
    step = Grade(trace_id=trace.id, reward="right", value=0.5, span_id="s1", at=1)
    stored(home, trace, new, step)
    stored(home, old)
    assert judgements.grades(home, trace_ids=[trace.id]) == [new, step]
    assert judgements.grades(home, project="shop", grader="v1") == [old]
    assert judgements.grades(home, run_id="none") == judgements.grades(home, trace_ids=[]) == []


def test_one_grade_given_twice_has_one_winner_in_any_order(home: Home) -> None:
    both = [Grade(trace_id="t", reward="r", value=value) for value in (0.0, None)]
    for number, order in enumerate((both, both[::-1])):
        one = Home(home.root / str(number))
        for grade in order:
            stored(one, grade)
    first, second = (judgements.grades(Home(home.root / str(number))) for number in (0, 1))
    assert first == second
    assert len(first) == 1
    later = msgspec.structs.replace(both[0], value=0.25, at=5)
    stored(Home(home.root / "0"), later)
    assert judgements.grades(Home(home.root / "0")) == [later]


def test_problems_by_environment_project_split_and_id(home: Home) -> None:
    trace = spoken()
    problems = [
        Problem(environment="support", messages=(say("user", str(k)),), answer={"k": k},
                split="heldout" if k % 2 else "train", trace_id=trace.id if k < 2 else None)
        for k in range(4)
    ]  # fmt: skip
    stored(home, trace, *problems)
    assert len(queries.problems(home, "support")) == 4
    assert len(queries.problems(home, "shop")) == 2
    assert {one.split for one in queries.problems(home, "support", split="train")} == {"train"}
    assert queries.problems(home, ids=[problems[3].id]) == [problems[3]]


def test_other_records_come_back_whole_by_project(home: Home) -> None:
    run = Run(id="r", project="shop", algorithm="rft", base_model="m", champion="c", snapshot="s")
    everything: dict[str, Any] = {
        "run": run,
        "checkpoint": Checkpoint(id="k", run_id="r", kind="adapter", path="runs/r", steps=3),
        "dataset": Dataset(id="d", project="shop", path="datasets/d", rows=1, parents=("r",)),
        "decision": Decision(id="x", project="shop", outcome="refused", gate="data",
                             reason="few", by="gate", at=1, evidence={"n": [1, None]}),
        "deployment": Deployment(name="shop-v1", project="shop", version=1, base_model="m"),
    }  # fmt: skip
    stored(home, *everything.values())
    for kind, record in everything.items():
        assert queries.records(home, kind, project="shop") == [record]
        assert queries.records(home, kind) == [record]
        assert queries.records(home, kind, project="garden") == []


def test_problems_that_were_sampled(home: Home) -> None:
    stored(
        home,
        spoken("1", origin="rollout", run_id="r1", problem_id="p1"),
        spoken("2", origin="rollout", run_id="r2", problem_id="p2"),
        spoken("3", origin="evaluation", run_id="r1", problem_id="p3"),
    )
    assert queries.sampled_problems(home, "shop") == {"p1", "p2"}
    assert queries.sampled_problems(home, "shop", before_run="r2") == {"p1"}


def test_an_incomplete_trace_is_counted_and_an_orphan_span_is_read(home: Home) -> None:
    stored(home, spoken(spans=(Span(id="x", kind="tool", parents=("gone",)),)))
    assert queries.counts(home, "shop")["incomplete"] == 1
    assert all_of(home)[0].fidelity == "view_only"


def test_forked_children_read_and_commit_on_their_own(home: Home) -> None:
    stored(home, spoken("a"))
    assert len(all_of(home)) == 1

    def work() -> None:
        assert "a" in names(home)
        stored(home, spoken("b", question="b"))

    for _ in range(3):
        assert run_in_child(work) == 0
    assert len(all_of(home)) == 2


def test_a_store_of_a_newer_version_is_not_written_by_older_code(home: Home) -> None:
    stored(home, spoken())
    with writing(home, wait_s=1.0) as database:
        database.execute("INSERT INTO migrations VALUES (99, 'from the future')")
    with pytest.raises(FlywheelError, match="newer"):
        stored(home, spoken("b"))
    with pytest.raises(FlywheelError, match="newer"):
        all_of(home)


def test_a_store_of_an_older_version_says_what_to_run(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(home, spoken())
    with monkeypatch.context() as patch:
        patch.setattr(schema, "newest", lambda: 99)
        with pytest.raises(FlywheelError, match="flywheel ingest"):
            all_of(home)
    assert len(all_of(home)) == 1


def test_texts_that_pass_the_usual_bound_of_memory_are_read_all_the_same(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of them is read whole, whichever of them are asked for."""
    stored(home, *(_long(number) for number in range(24)))
    monkeypatch.setattr("storage.database._MEMORY", "16MB")
    found = [len(batch) for batch in queries.traces(home, batch=5)]
    assert sum(found) == 24 and max(found) == 5


def _long(number: int) -> Trace:
    call = ModelCall(input=(say("user", f"{number} " + "word " * 200_000),))
    span = Span(id="a", kind="model", start=number + 1, call=call)
    return Trace(id=f"long{number}", project="p", source="s", external_id=str(number),
                 origin="production", spans=(span,))  # fmt: skip
