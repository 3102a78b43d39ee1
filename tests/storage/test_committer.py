import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel.errors import Busy, CorruptFile
from flywheel.home import Home
from flywheel.lineage import Run
from flywheel.records import Feedback, Grade, Problem, Span, Trace, say
from storage import queries, snapshots
from storage.committer import CommitReport, commit
from storage.database import reading, writing
from storage.envelope import AnyRecord, encode
from storage.inbox import Inbox, pack
from storage.journal import Journal
from storage.merge import copies, counted_once, judged, merge
from storage.prepared import prepare
from tests.storage.store_parts import everything, killed_at, run_in_child, spoken

TABLES = {
    "traces": "since, raws", "spans": "since", "tokens": "since", "messages": "", "toolsets": "",
    "grades": "since", "feedback": "since",
}  # fmt: skip


def state(home: Home) -> dict[str, list[Any]]:
    """All that the store holds, apart from when it came."""
    found: dict[str, list[Any]] = {}
    with reading(home) as database:
        assert database is not None
        for table, but in TABLES.items():
            columns = f"* EXCLUDE ({but})" if but else "*"
            query = f"SELECT {columns} FROM {table} ORDER BY ALL"
            found[table] = database.execute(query).fetchall()
    return found


def all_of(home: Home, **conditions: Any) -> list[Trace]:
    return [trace for batch in queries.traces(home, **conditions) for trace in batch]


def stored(home: Home, *segments: Sequence[AnyRecord]) -> CommitReport:
    for records in segments:
        Inbox(home).append(records)
    return commit(home)


def test_a_trace_with_everything_in_it_comes_back_as_it_was(home: Home) -> None:
    stored(home, [everything()])
    merged = judged(merge(None, everything()))
    (back,) = all_of(home, ids=[merged.id])
    assert back == merged
    assert msgspec.json.encode(back, order="deterministic") == msgspec.json.encode(
        merged, order="deterministic"
    )


def test_delivered_again_changes_nothing_and_is_counted(home: Home) -> None:
    records = [spoken("a"), spoken("b", question="other"), Feedback(project="shop", target="a")]
    first = stored(home, records)
    assert (first.traces, first.spans, first.feedback, first.duplicates) == (2, 2, 1, 0)
    before = state(home)
    again = stored(home, records, records[:1])
    assert (again.traces, again.spans, again.feedback, again.duplicates) == (0, 0, 0, 4)
    assert state(home) == before


def test_a_span_repeated_in_one_delivery_is_one_row(home: Home) -> None:
    span = spoken().spans[0]
    report = stored(home, [spoken(spans=(span,) * 7)], [spoken(), spoken()])
    assert (report.traces, report.spans, report.duplicates) == (1, 1, 2)
    assert len(state(home)["spans"]) == 1


def parts_of_a_store() -> list[AnyRecord]:
    """Conflicting, overlapping and repeated parts of a few traces, with what is said of them."""
    spans = [
        Span(id=id, kind="tool", parents=parents, start=start, version=version, name=name)
        for id, parents, start, version, name in [
            ("root", (), 1, 0, "r"), ("a", ("root",), 2, 0, "old"), ("a", ("root",), 2, 1, "new"),
            ("a", ("root",), 2, 1, "tie"), ("b", ("never",), 3, 0, "b"), ("c", ("a",), 4, 0, "c"),
        ]
    ]  # fmt: skip
    call = spoken().spans[0]
    copied = msgspec.structs.replace(call, id="again")
    tokens = everything().spans[2]
    parts: list[AnyRecord] = [spoken("x", spans=(span,)) for span in spans]
    parts += [spoken("x", spans=(call,)), spoken("x", spans=(copied, spans[1]), user="u1")]
    parts += [spoken("x", spans=(), user="u2", conversation="c1", raw="1" * 32)]
    parts += [spoken("y", spans=(tokens,)), spoken("y", spans=(tokens, call), raw="2" * 32)]
    parts += [spoken("p1"), spoken("p2"), spoken("p3", source="import:other", start=77)]
    parts += [everything()]
    parts += [
        Grade(trace_id="t", reward="r", value=value, at=at)
        for value, at in [(None, 1), (0.0, 1), (1.0, 1), (0.5, 0)]
    ]
    parts += [Feedback(project="shop", target="x", value=value, at=1) for value in (True, False)]
    return parts


def append_either_way(home: Home, parts: list[AnyRecord], chance: random.Random) -> None:
    """As lines, or as rows that are ready, as importers leave them."""
    ready = [one for one in parts if isinstance(one, Trace | Feedback) and chance.random() < 0.6]
    if ready:
        Inbox(home).append_rows(prepare(ready), name=f"ready-{chance.random()}")
    if lines := [one for one in parts if not any(one is other for other in ready)]:
        Inbox(home).append(lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_order_and_any_segments_give_the_same_store(home: Home, seed: int) -> None:
    stored(home, parts_of_a_store())
    chance = random.Random(seed)
    other = Home(home.root.parent / "other")
    parts = parts_of_a_store() + chance.choices(parts_of_a_store(), k=6)
    chance.shuffle(parts)
    while parts:
        size = chance.randrange(1, 8)
        append_either_way(other, parts[:size], chance)
        parts = parts[size:]
        if chance.random() < 0.5:
            commit(other)
    commit(other)
    assert state(other) == state(home)
    assert snapshots.snapshot(other, "shop").digest == snapshots.snapshot(home, "shop").digest


def test_a_trace_reads_back_as_its_parts_merge(home: Home) -> None:
    parts = [part for part in parts_of_a_store() if isinstance(part, Trace)]
    stored(home, *([part] for part in parts))
    merged: dict[str, Trace] = {}
    for part in parts:
        merged[part.id] = merge(merged.get(part.id), part)
    expected = {key: judged(counted_once(trace, copies(trace))) for key, trace in merged.items()}
    assert {trace.id: trace for trace in all_of(home, ids=list(merged))} == expected


def test_a_child_whose_parent_never_came_is_kept_and_flagged_until_it_comes(home: Home) -> None:
    child = Span(id="child", kind="tool", parents=("parent",), start=2)
    stored(home, [spoken(spans=(child,))])
    (trace,) = all_of(home)
    assert [span.id for span in trace.spans] == ["child"]
    assert queries.counts(home, "shop")["incomplete"] == 1
    stored(home, [spoken(spans=(Span(id="parent", kind="agent", start=1),))])
    assert queries.counts(home, "shop")["incomplete"] == 0
    assert [span.id for span in all_of(home)[0].spans] == ["parent", "child"]


@pytest.mark.parametrize(
    "damage", [b"", b"not a segment", pack([encode(spoken("lost"))])[:-9]], ids=repr
)
def test_a_segment_that_cannot_be_read_is_moved_away_and_the_rest_goes_on(
    home: Home, damage: bytes
) -> None:
    home.inbox.mkdir(parents=True)
    (home.inbox / "bad.segment").write_bytes(damage)
    report = stored(home, [spoken()])
    assert (report.traces, report.quarantined) == (1, 1)
    assert (home.quarantine / "bad.segment").read_bytes() == damage
    assert "reason" in (home.quarantine / "bad.segment.why").read_text()
    assert Inbox(home).pending() == []


def test_a_line_that_cannot_be_read_is_set_aside_and_its_neighbours_are_not(home: Home) -> None:
    good = encode(spoken())
    huge = good.replace(b'"start":1000', b'"start":99999999999999999999')
    bad = [good.replace(b'"production"', b'"elsewhere"'), b"\xff", huge, b'["trace",null]',
           b'["trace",' + b"[" * 100_000 + b"]" * 100_000 + b"]"]  # fmt: skip
    home.inbox.mkdir(parents=True)
    (home.inbox / "mixed.segment").write_bytes(pack([*bad, good]))
    report = commit(home)
    assert (report.traces, report.quarantined, report.duplicates) == (1, 5, 0)
    assert (home.quarantine / "mixed-1").read_bytes() == bad[0]
    assert "elsewhere" in (home.quarantine / "mixed-1.why").read_text()


def test_a_name_in_the_ledger_is_never_taken_in_again(home: Home) -> None:
    Inbox(home).append([spoken("a")], name="one")
    commit(home)
    (home.inbox / "one.segment").write_bytes(pack([encode(spoken("b"))]))
    assert commit(home).traces == 0
    assert Inbox(home).pending() == []


def test_one_name_that_two_files_have_is_taken_in_once(home: Home) -> None:
    Inbox(home).append([spoken("a")], name="a b")
    (path,) = Inbox(home).pending()
    path.with_name("a b.segment").write_bytes(pack([encode(spoken("b"))]))
    assert commit(home).segments == 1
    assert not Inbox(home).pending() and len(all_of(home)) == 1


@pytest.mark.parametrize("place", ["store.before_commit", "store.after_commit"])
def test_a_commit_killed_at_any_step_ends_as_one_that_was_not(home: Home, place: str) -> None:
    other = Home(home.root.parent / "other")
    for one in (home, other):
        Inbox(one).append(parts_of_a_store(), name="all")
        Inbox(one).append([spoken("z")], name="more")
    commit(other)
    killed_at(place, lambda: commit(home))
    Inbox(home).append(parts_of_a_store(), name="all")
    commit(home)
    assert state(home) == state(other)
    assert snapshots.snapshot(home, "shop") == snapshots.snapshot(other, "shop")
    assert Inbox(home).pending() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_commits_killed_at_random_lose_and_repeat_nothing(home: Home, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(6):
        records = [spoken(f"{number}-{k}", question=f"{number} {k}") for k in range(300)]
        Inbox(home).append(records, name=f"s{number}")
        child = os.fork()
        if child == 0:
            try:
                commit(home)
            finally:  # never on with the tests, whatever it raised
                os._exit(0)
        time.sleep(chance.uniform(0.01, 0.6))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    commit(home)
    counts = queries.counts(home, "shop")
    assert (counts["traces"], counts["spans"], counts["copies"]) == (1800, 1800, 0)
    assert Inbox(home).pending() == []


@pytest.mark.slow
def test_two_producers_a_committer_and_readers_together_lose_and_repeat_nothing(
    home: Home,
) -> None:
    def produce(name: str) -> None:
        gateway = Journal(home, rotate_bytes=40_000)
        for number in range(40):
            records = [
                spoken(f"{name}{number}-{k}", question=f"{name} {number} {k}") for k in range(20)
            ]
            Inbox(home).append(records)
            if number % 3 == 0:
                Inbox(home).append(records[:7])
            gateway.append(encode(spoken(f"{name}g{number}", question=f"g {name} {number}")))
        gateway.close()

    def read(_: str) -> None:
        last = 0
        for _ in range(25):
            now = queries.counts(home, "shop").get("traces", 0)
            assert now >= last
            last = now
            assert len({trace.id for trace in all_of(home, project="shop")}) >= last

    children = {}
    for work, name in ((produce, "a"), (produce, "b"), (read, "r"), (read, "q")):
        child = os.fork()
        if child == 0:
            os._exit(run_in_child(lambda work=work, name=name: work(name)))  # type: ignore[misc]
        children[child] = name
    reports = []
    while children:
        reports.append(commit(home))
        for child in list(children):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0, children[child]
                del children[child]
    reports.append(commit(home))
    counts = queries.counts(home, "shop")
    assert (counts["traces"], counts["spans"], counts["copies"]) == (1680, 1680, 0)
    assert sum(report.traces for report in reports) == 1680
    assert sum(report.duplicates for report in reports) == 2 * 14 * 7


def test_a_second_committer_waits_and_then_says_what_to_do(home: Home) -> None:
    stored(home, [spoken()])
    Inbox(home).append([spoken("b")])
    with writing(home, wait_s=1.0), pytest.raises(Busy, match="wait for it and run again"):
        commit(home, wait_s=0.05)
    assert commit(home).traces == 1


def test_a_reader_that_never_leaves_makes_the_committer_say_so(home: Home) -> None:
    stored(home, [spoken()])
    Inbox(home).append([spoken("b")])
    with reading(home), pytest.raises(Busy, match="held by another process"):
        commit(home, wait_s=0.05)
    assert commit(home).traces == 1


def test_a_file_that_is_no_database_is_named_and_nothing_is_lost(home: Home) -> None:
    Inbox(home).append([spoken()])
    home.database.write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptFile, match=r"flywheel\.duckdb"):
        commit(home)
    home.database.unlink()
    assert commit(home).traces == 1


FULL_DISK = """
import random
from pathlib import Path
from flywheel.errors import Full
from flywheel.home import Home
from storage import queries
from storage.committer import commit
from storage.inbox import Inbox
from tests.storage.store_parts import spoken

home, noise = Home(Path("{place}") / "home"), random.Random(0)
for part in range(4):
    questions = [noise.randbytes(2000).hex() for _ in range(200)]
    Inbox(home).append([spoken(str((part, one)), question=one) for one in questions])
try:
    commit(home)
except Full as error:
    print("FULL", error, len(Inbox(home).pending()), queries.counts(home, "shop").get("traces", 0))
"""


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=4m tmpfs {tmp_path} && exec {sys.executable} -"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount],
        input=FULL_DISK.format(place=tmp_path), capture_output=True, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no small disk can be made here: {done.stderr.strip()[:100]}")
    assert "FULL no space left" in done.stdout, done.stdout + done.stderr
    assert done.stdout.strip().endswith(" 4 0")


def test_a_copy_under_another_id_is_kept_and_counted_once(home: Home) -> None:
    gateway = [spoken("g1", start=100), spoken("g2", start=900)]
    exported = [spoken("e1", source="import:l", origin="import", start=101),
                spoken("e2", source="import:l", origin="import", start=903)]  # fmt: skip
    report = stored(home, exported, gateway)
    assert (report.traces, report.copies) == (4, 2)
    counts = queries.counts(home, "shop")
    assert (counts["traces"], counts["copies"], counts["input_tokens"]) == (2, 2, 20)
    assert {trace.external_id for trace in all_of(home)} == {"g1", "g2"}
    everyone = [trace.id for trace in [*gateway, *exported]]
    assert len(all_of(home, ids=everyone)) == 4


def test_an_export_again_with_new_trace_ids_and_the_same_times_is_a_copy(home: Home) -> None:
    report = stored(home, [spoken("a"), spoken("b")])
    assert report.copies == 1
    assert queries.counts(home, "shop")["traces"] == 1


def test_the_same_words_at_another_time_are_another_conversation(home: Home) -> None:
    stored(home, [spoken(str(k), start=k) for k in range(5)])
    assert queries.counts(home, "shop")["traces"] == 5


def test_sampled_answers_are_never_copies_of_each_other(home: Home) -> None:
    stored(home, [spoken(str(k), origin="rollout", source="rollout:r") for k in range(4)])
    assert queries.counts(home, "shop")["rollouts"] == 4
    assert len(all_of(home, origin=("rollout",))) == 4


def test_a_trace_that_grows_is_no_longer_a_copy(home: Home) -> None:
    stored(home, [spoken("a"), spoken("b")])
    more = spoken("b", span="s2", question="and now?", start=2_000)
    stored(home, [more])
    assert queries.counts(home, "shop")["traces"] == 2


def test_a_turn_exported_again_under_new_span_ids_counts_its_tokens_once(home: Home) -> None:
    stored(home, [spoken("a", span="one")], [spoken("a", span="two")])
    counts = queries.counts(home, "shop")
    assert (counts["spans"], counts["input_tokens"], counts["output_tokens"]) == (1, 10, 3)
    assert [span.id for span in all_of(home)[0].spans] == ["one"]


def test_usage_that_is_not_known_is_not_counted_as_none(home: Home) -> None:
    call = spoken().spans[0].call
    assert call is not None
    silent = msgspec.structs.replace(
        spoken().spans[0], call=msgspec.structs.replace(call, usage=type(call.usage)())
    )
    stored(home, [spoken(spans=(silent,))])
    counts = queries.counts(home, "shop")
    assert (counts["calls"], counts["calls_with_usage"]) == (1, 0)
    assert "input_tokens" not in counts


def test_of_other_records_the_later_stands_and_what_it_does_not_know_stays(home: Home) -> None:
    run = Run(id="r", project="shop", algorithm="rft", base_model="m", champion="c", snapshot="s")
    done = msgspec.structs.replace(run, seconds=3.5, mlflow_run_id="x")
    stored(home, [run], [done])
    assert queries.records(home, "run") == [done]
    report = stored(home, [run])
    assert queries.records(home, "run") == [done]
    assert report.duplicates == 1
    first = Problem(environment="e", messages=(say("user", "q"),), answer=1)
    other = msgspec.structs.replace(first, answer=2)
    for answered in (first, other, first):
        stored(home, [answered])
    assert queries.problems(home, "e") == [first]


@pytest.mark.slow
def test_many_small_segments_and_a_large_one_are_taken_in_together(home: Home) -> None:
    for number in range(60):
        Inbox(home).append([spoken(f"s{number}", question=str(number))])
    Inbox(home).append([spoken(f"l{number}", question=f"l{number}") for number in range(11_000)])
    report = commit(home)
    assert (report.segments, report.traces) == (61, 11_060)


def test_a_two_megabyte_message_is_stored_whole(home: Home) -> None:
    stored(home, [spoken(answer="\U0001f600x" * 400_000)])
    (trace,) = all_of(home)
    call = trace.spans[0].call
    assert call is not None
    assert len(call.choices[0].message.text) == 800_000
