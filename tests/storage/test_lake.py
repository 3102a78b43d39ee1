"""What machines share by a lake: in a folder, and on a real server of the S3 protocol."""

import itertools
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel.errors import CorruptFile, UsageError
from flywheel.home import Home
from flywheel.records import Feedback, Grade, Tokens, Trace, say
from storage import lake_inbox, published, queries
from storage.committer import commit
from storage.curate import curate
from storage.datasets import read_dataset, write_dataset
from storage.inbox import Inbox
from storage.journal import Journal
from storage.lake import FolderLake, Lake, LakeError, ObjectLake, open_lake
from storage.locks import lock
from storage.mirror import brought, renew
from storage.publish import publish
from storage.raw import RawStore
from tests.storage.rows_for_curation import a_row
from tests.storage.store_parts import everything, killed_at, spoken


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """URL of a bucket on a server of the S3 protocol."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        import fsspec

        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "folder":
        return open_lake(str(tmp_path / "lake"))
    bucket = request.getfixturevalue("s3")
    return open_lake(f"{bucket}/{tmp_path.name}")


def stored(home: Home, *records: Any) -> None:
    Inbox(home).append(records)
    commit(home)


def rows(lake: Lake, home: Home, name: str) -> list[dict[str, Any]]:
    of = published.newest(lake)
    assert of is not None
    return published.table(lake, of, name, home.root / "parts").collect().to_dicts()


def test_a_key_is_put_once_and_comes_back_whole(lake: Lake) -> None:
    assert lake.put_new("a/b", b"one") and not lake.put_new("a/b", b"two")
    assert lake.get("a/b") == b"one" and [tuple(one) for one in lake.list("a/")] == [("a/b", 3)]
    assert list(lake.list("none/")) == []
    for nothing in ("a/c", "a", "a/b/c"):
        with pytest.raises(KeyError):
            lake.get(nothing)
    lake.delete("a/b")
    lake.delete("a/b")
    assert list(lake.list("a/")) == []


def test_no_key_leads_out_of_the_home(home: Home, lake: Lake, tmp_path: Path) -> None:
    if isinstance(lake, FolderLake):
        return  # a folder's own names lead nowhere else
    lake.put_new(f"{lake_inbox.INBOX}../../../evil", b"x")
    assert lake_inbox.fetch(home, lake) == 0
    assert not list(tmp_path.rglob("evil"))


def test_what_a_killed_writer_left_half_put_can_be_removed(lake: Lake, tmp_path: Path) -> None:
    lake.put_new("raw/a", b"whole")
    if isinstance(lake, ObjectLake):
        import fsspec

        bucket, _, prefix = lake.url.removeprefix("s3://").partition("/")
        files = fsspec.filesystem("s3")
        for key in (f"{prefix}/raw/b", "other/raw/b"):
            files.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        lake.tidy()
        left = files.call_s3("list_multipart_uploads", Bucket=bucket)["Uploads"]
        assert [one["Key"] for one in left] == ["other/raw/b"]
        return
    left, used = (tmp_path / "lake" / "raw" / name for name in (".writing-1", ".writing-2"))
    left.write_bytes(b"of somebody")
    used.write_bytes(b"of one who writes now")
    with used.open() as file:
        lock(file.fileno())
        lake.tidy()
    assert not left.exists() and used.exists() and lake.get("raw/a") == b"whole"


def test_of_many_that_put_one_key_one_wins(lake: Lake) -> None:
    won: list[int] = []

    def put(number: int) -> None:
        if lake.put_new("x/y", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(won) == 1 and lake.get("x/y") == str(won[0]).encode()


def test_what_cannot_be_a_lake_or_be_reached_is_said(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("ftp://x/y", "s3://"):
        with pytest.raises(UsageError, match="FLYWHEEL_LAKE"):
            open_lake(url)
    with pytest.raises(LakeError, match="nothing is lost"):
        open_lake("s3://no-such-bucket/x").put_new("a", b"")
    assert isinstance(open_lake("file:///x"), FolderLake)
    assert isinstance(open_lake("s3://bucket"), ObjectLake)


def test_what_is_published_is_what_the_store_has(home: Home, lake: Lake) -> None:
    tokens = Tokens(prompt_ids=(1,), completion_ids=(2,), logprobs=(-0.5,))
    first, other = spoken("first", tokens=tokens), everything()
    stored(home, first, other, Grade(trace_id=first.id, reward="r", value=0.0))
    one = publish(home, lake)
    assert (one.manifest, one.whole) == (1, True) and one.rows > 5
    assert publish(home, lake).parts == 0, "nothing new"
    stored(home, spoken("first", answer="another", span="s2", start=9_000),
           Grade(trace_id=first.id, reward="r", value=1.0, at=5))  # fmt: skip
    two = publish(home, lake)
    assert (two.manifest, two.whole) == (2, False) and two.sequence > one.sequence
    traces = {row["id"]: row for row in rows(lake, home, "traces")}
    assert traces.keys() == {first.id, other.id} and traces[first.id]["spans"] == 2
    assert len(rows(lake, home, "spans")) == 7 and len(rows(lake, home, "tokens")) == 3
    assert [row["value"] for row in rows(lake, home, "grades")] == [1.0]
    said = {row["id"] for row in rows(lake, home, "messages")}
    named = {key for row in rows(lake, home, "spans")
             for key in (*(row["input"] or ()), *(row["output"] or ()))}  # fmt: skip
    assert named == said


def test_conversations_are_published_as_they_stand(home: Home, tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))

    def asked(name: str, start: int, *said: str) -> Trace:
        one = spoken(name, answer=f"answer to {name}", start=start)
        (span,), roles = one.spans, itertools.cycle(("user", "assistant"))
        assert span.call is not None
        prompt = tuple(say(role, text) for role, text in zip(roles, said, strict=False))
        call = msgspec.structs.replace(span.call, input=prompt)
        return msgspec.structs.replace(one, spans=(msgspec.structs.replace(span, call=call),))

    third = asked("c", 3000, "hi", "answer to a", "and?", "answer to b", "so?")
    stored(home, asked("a", 1000, "hi"), third)
    publish(home, lake)
    stored(home, asked("b", 2000, "hi", "answer to a", "and?"))
    publish(home, lake)
    found = {row["trace_id"]: row["follows"] for row in rows(lake, home, "threads")}
    first, second = asked("a", 1000).id, asked("b", 2000).id
    assert found == {first: None, second: first, third.id: second}


def test_killed_before_its_manifest_nobody_reads_what_was_written(home: Home, lake: Lake) -> None:
    stored(home, spoken("a"))
    publish(home, lake)
    stored(home, spoken("b", answer="b"))
    if isinstance(lake, FolderLake):
        killed_at("lake.before_manifest", lambda: publish(home, lake))
        assert len(rows(lake, home, "traces")) == 1
        killed_at("lake.after_manifest", lambda: publish(home, lake))
    publish(home, lake)
    assert len(rows(lake, home, "traces")) == 2


def test_two_publishers_end_with_one_manifest_each_and_all_rows(home: Home, lake: Lake) -> None:
    for name in "abc":
        stored(home, spoken(name, answer=name))
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(publish(home, lake))) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(made) == 3 and len(rows(lake, home, "traces")) == 3


def test_a_home_may_be_called_anything(tmp_path: Path) -> None:
    home = Home(tmp_path / "it's [1]*")
    stored(home, everything())
    lake = open_lake(str(tmp_path / "la'ke?"))
    publish(home, lake)
    assert len(rows(lake, home, "traces")) == 1


def test_a_lake_is_one_homes(home: Home, lake: Lake, tmp_path: Path) -> None:
    stored(home, spoken("a"))
    publish(home, lake)
    other = Home(tmp_path / "other")
    stored(other, spoken("b"))
    with pytest.raises(UsageError, match="another home's"):
        publish(other, lake)


def test_raw_bytes_are_fetched_where_they_are_absent(
    home: Home, lake: Lake, tmp_path: Path
) -> None:
    key = RawStore(home).put(b"as it came")
    stored(home, spoken("a", raw=key))
    assert publish(home, lake).files == 1
    reader = Home(tmp_path / "reader", lake=lake.url)
    assert RawStore(reader).get(key) == b"as it came"
    assert not brought(reader, reader.raw / "00" / "none.zst")
    with pytest.raises(KeyError):
        RawStore(reader).get("0" * 32)


def test_a_dataset_of_which_a_part_was_fetched_is_fetched_again(
    home: Home, lake: Lake, tmp_path: Path
) -> None:
    rows = [a_row(k) for k in range(3)]
    dataset = write_dataset(home, "shop", curate(rows, (), [], 0.7), parents=[], rules=())
    publish(home, lake)
    for asked in (dataset, dataset.id):
        reader = Home(tmp_path / f"reader-{len(str(asked))}", lake=lake.url)
        kept = reader.path(dataset.path) / "dropped.jsonl"
        kept.parent.mkdir(parents=True)
        kept.write_bytes(b"")  # as one that was killed leaves it
        assert {row.trace_id for row in read_dataset(reader, asked)} == {
            row.trace_id for row in rows
        }


def test_what_an_erasure_cleaned_of_a_dataset_is_clean_there_too(home: Home, lake: Lake) -> None:
    dataset, other = (
        write_dataset(home, "shop", curate([a_row(k)], (), [], 0.7), parents=[], rules=())
        for k in range(2)
    )
    publish(home, lake)
    cleaned = home.path(dataset.path) / "manifest.json"
    cleaned.write_bytes(cleaned.read_bytes().replace(b'"shop"', b'"gone"'))
    shutil.rmtree(home.path(other.path))
    renew(home, lake)
    there = {one.key: lake.get(one.key) for one in lake.list("datasets/")}
    here = {f"{dataset.path}/{one.name}": one.read_bytes() for one in cleaned.parent.iterdir()}
    assert there == here and b'"gone"' in there[f"{dataset.path}/manifest.json"]


def test_machines_without_the_database_send_and_nothing_counts_twice(
    home: Home, lake: Lake, tmp_path: Path
) -> None:
    edge = Home(tmp_path / "edge")
    key = RawStore(edge).put(b"a body")
    Inbox(edge).append([spoken("a", raw=key)])
    from storage.envelope import encode

    journal = Journal(edge)
    journal.append(encode(spoken("b", answer="b")))
    if isinstance(lake, FolderLake):
        killed_at("lake.journal_sent", lambda: lake_inbox.send(edge, lake))
        killed_at("lake.segment_sent", lambda: lake_inbox.send(edge, lake))
    lake_inbox.send(edge, lake)
    journal.append(encode(spoken("c", answer="c")))
    journal.close()
    assert lake_inbox.send(edge, lake).segments == 1
    assert not Inbox(edge).pending() and not list(edge.journal.glob("*.journal"))
    if isinstance(lake, FolderLake):
        killed_at("lake.segment_fetched", lambda: lake_inbox.fetch(home, lake))
    lake_inbox.fetch(home, lake)
    commit(home)
    assert lake_inbox.fetch(home, lake) == 0 and not list(lake.list("inbox/"))
    found = [one.external_id for batch in queries.traces(home, project="shop") for one in batch]
    assert sorted(found) == ["a", "b", "c"] and RawStore(home).get(key) == b"a body"
    with pytest.raises(UsageError, match="database of its own"):
        lake_inbox.send(home, lake)


def test_after_an_erasure_nothing_older_is_left(home: Home, lake: Lake) -> None:
    from flywheel.lineage import Erasure
    from storage.database import writing

    key = RawStore(home).put(b"secret body")
    gone, stays = spoken("gone", question="secret", raw=key), spoken("stays")
    stored(home, gone, stays, Feedback(project="shop", target=gone.id, value="secret"))
    publish(home, lake)
    with writing(home, wait_s=5) as database:  # as `flywheel erase` leaves a store
        for table, column in (("traces", "id"), ("spans", "trace_id"), ("feedback", "target")):
            database.execute(f"DELETE FROM {table} WHERE {column} = ?", [gone.id])
        database.execute("DELETE FROM messages WHERE body LIKE '%secret%'")
    next(home.raw.rglob("*.zst")).unlink()
    stored(home, Erasure(id="01", asked="user x", by="ann", reason="asked", at=1))
    if isinstance(lake, FolderLake):  # what names the erased still lies there then
        killed_at("lake.after_manifest", lambda: publish(home, lake))
        assert len(list(lake.list("manifests/"))) == 2 and not publish(home, lake).whole
    else:
        assert publish(home, lake).whole
    assert [row["id"] for row in rows(lake, home, "traces")] == [stays.id]
    assert len(list(lake.list("manifests/"))) == 1 and not list(lake.list("raw/"))
    left = [lake.get(one.key) for one in lake.list("tables/")]
    named = {part.key for part in published.newest(lake).parts}  # type: ignore[union-attr]
    assert {one.key for one in lake.list("tables/")} == named and left
    assert "secret" not in str([rows(lake, home, name) for name in ("messages", "feedback")
                                if any(f"/{name}/" in key for key in named)])  # fmt: skip


def changed(lake: Lake, **fields: Any) -> None:
    """The first manifest, as somebody else would have it."""
    key = published.key_of(1)
    held = msgspec.json.decode(lake.get(key)) | fields
    lake.delete(key)
    lake.put_new(key, msgspec.json.encode(held))


def test_what_is_nobodys_manifest_or_part_stops_no_publishing(home: Home, tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    stored(home, spoken("a"))
    strange = ("tables/README", "tables/traces/notes-1.txt", "manifests/z.json", "manifests/1.json")
    for key in strange:
        lake.put_new(key, b"x")
    assert [publish(home, lake).manifest for _ in range(2)] == [1, 1]
    stored(home, spoken("b", answer="b"))
    assert publish(home, lake).manifest == 2 and len(rows(lake, home, "traces")) == 2
    assert all(lake.get(key) == b"x" for key in strange), "they are somebody's"


def test_a_lake_that_is_no_folder_is_named(home: Home, tmp_path: Path) -> None:
    stored(home, spoken("a"))
    (tmp_path / "file").write_text("no folder")
    for place in (tmp_path / "file", tmp_path / "file" / "inside", Path("/proc/lake")):
        with pytest.raises(LakeError, match="FLYWHEEL_LAKE names another"):
            publish(home, open_lake(str(place)))


@pytest.mark.parametrize("place", [
    {"key": "../secret.parquet"}, {"key": "raw/00/x.zst"}, {"digest": "../secret"},
])  # fmt: skip
def test_no_manifest_names_files_that_are_no_parts(
    home: Home, tmp_path: Path, place: dict[str, str]
) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    stored(home, spoken("a"))
    publish(home, lake)
    (first, *rest) = msgspec.to_builtins(published.newest(lake))["parts"]
    changed(lake, parts=[{**first, **place}, *rest])
    for look in (lambda: published.newest(lake), lambda: publish(home, lake)):
        with pytest.raises(CorruptFile, match="remove it, and publish again"):
            look()
    changed(lake, parts=[first, *rest], number=700)
    with pytest.raises(CorruptFile, match="number 700"):
        published.newest(lake)


@pytest.mark.parametrize("ahead", [{"sequence": 1 << 40}, {"erased": 1 << 40}])
def test_a_home_that_was_put_back_publishes_what_it_has_now(
    home: Home, tmp_path: Path, ahead: dict[str, int]
) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    stored(home, spoken("a"))
    publish(home, lake)
    changed(lake, **ahead)
    lake.put_new("raw/00/later.zst", b"of after the copy")
    stored(home, spoken("b", answer="b"))
    assert publish(home, lake).whole and len(rows(lake, home, "traces")) == 2
    assert not publish(home, lake).whole and list(lake.list("raw/"))


def test_messages_are_published_once_until_they_lie_elsewhere(home: Home, tmp_path: Path) -> None:
    from storage.database import writing

    lake = open_lake(str(tmp_path / "lake"))

    def put() -> list[int]:
        """Rows of the parts of messages, oldest first."""
        publish(home, lake)
        of = published.newest(lake)
        assert of is not None
        return [one.rows for one in of.parts if one.table == "messages"]

    stored(home, spoken("a", question="q", answer="a"))
    first = put()
    stored(home, spoken("b", question="q", answer="b"))
    assert put() == [*first, 1], "the question is there"
    stored(home, spoken("c", question="q", answer="a"))
    assert put() == [*first, 1], "nothing new is said"
    with writing(home, wait_s=5) as database:  # as an erasure leaves them
        database.execute("DELETE FROM messages WHERE rowid = 0")
        database.execute("CREATE TABLE anew AS FROM messages")
        database.execute("DROP TABLE messages; ALTER TABLE anew RENAME TO messages")
    stored(home, spoken("d", question="q2", answer="d"))
    assert put()[2] >= 3, "all of them again"


def test_a_piece_that_an_erasure_moved_is_planned_again(home: Home, tmp_path: Path) -> None:
    from storage.database import reading, writing
    from storage.tables_out import Moved, Span, planned, written

    stored(home, spoken("a"), spoken("b", answer="b"))
    with reading(home) as database:
        assert database is not None
        (said,) = (one for one in planned(database, Span(0, 1), None) if one.table == "messages")
        assert written(database, said, tmp_path / "1") == said.end.rows  # type: ignore[union-attr]
        written(database, said, tmp_path / "2")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    with writing(home, wait_s=5) as database:
        database.execute("DELETE FROM messages WHERE rowid = (SELECT max(rowid) FROM messages)")
    with reading(home) as database, pytest.raises(Moved):
        assert database is not None
        written(database, said, tmp_path / "3")
