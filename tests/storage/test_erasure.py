"""An erasure takes all that is somebody's out of a home, and leaves all that is not."""

import gzip
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
import zstandard

from flywheel.home import Home
from flywheel.lineage import Decision, Erasure
from flywheel.records import Grade, Problem
from storage.committer import commit
from storage.database import reading
from storage.datasets import read_dataset
from storage.envelope import encode
from storage.erasure import erase, resume
from storage.erasure_plan import keep, plan_of
from storage.importer import import_path, raw_row, take_files
from storage.inbox import Inbox
from storage.journal import Journal
from storage.publish import publish
from storage.queries import counts, records, traces
from storage.reach import Asked, reach
from storage.search import search
from tests.storage.scattered import SECRETS, TOKENS, scattered
from tests.storage.store_parts import killed_at, spoken

ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import sys
from pathlib import Path
from flywheel import failpoints
from flywheel.home import Home
from storage.erasure import erase
from storage.reach import Asked
failpoints.arm(sys.argv[2])
erase(Home(Path(sys.argv[1])), Asked(kind="user", value="ada"), by="eve", reason="")
"""

BOB = ("Builder Road", "Y-9902-BOB")
ADA = ("X-4471-ADA", "Countess Lane", "live-ada", "talk-ada", "span-ada", "Dear ada", "chat-ada")


def looked_through(root: Path, *wanted: str) -> list[str]:
    """Files that hold one of `wanted`, found without any of our code: unpacked where they are
    packed, read row by row where they are tables."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            held = _plain(path)
            found += [f"{path.relative_to(root)}: {one}" for one in wanted if one.encode() in held]
    return found


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:4] == b"PAR1":
        rows = duckdb.sql(f"SELECT * FROM read_parquet('{path}')").fetchall()
        return data + repr(rows).encode()
    if data[8:12] == b"DUCK":
        with duckdb.connect(path, read_only=True) as database:
            tables = database.execute("SELECT table_name FROM duckdb_tables()").fetchall()
            rows = [database.execute(f"SELECT * FROM {one}").fetchall() for (one,) in tables]
        return data + repr(rows).encode()
    if data.startswith(b"SQLite"):
        with sqlite3.connect(path) as database:
            data += "\n".join(database.iterdump()).encode()
        database.close()
    return data


@pytest.fixture
def place(tmp_path: Path) -> tuple[Home, Journal]:
    return scattered(tmp_path)


def gone(home: Home, **asked: str) -> Erasure:
    ((kind, value),) = asked.items()
    return erase(home, Asked(kind=kind, value=value), by="eve", reason="asked to")  # type: ignore[arg-type]


class Erased(NamedTuple):
    home: Home
    receipt: Erasure
    ada: list[str]
    """Where her data lay."""
    bob: list[str]


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Erased]:
    """One home out of which one person went, while a server had its journal open."""
    home, journal = scattered(tmp_path_factory.mktemp("erased"))
    ada, bob = looked_through(home.root, *ADA), looked_through(home.root, *BOB)
    yield Erased(home, gone(home, user="ada"), ada, bob)
    journal.close()


def test_nothing_is_left_of_one_person_and_everything_of_the_other(erased: Erased) -> None:
    home, receipt, ada, bob = erased
    assert len({one.split(":")[0] for one in ada}) > 15
    assert receipt.left == () and receipt.done
    assert looked_through(home.root, *ADA) == []
    tokens = ", ".join(map(str, TOKENS["ada"][12:28]))
    assert looked_through(home.root, tokens, tokens.replace(" ", "")) == []
    kept = looked_through(home.root, *BOB)
    renamed = ("raw/", "datasets/")  # under new digests and ids
    assert {one for one in bob if not one.startswith(renamed)} <= set(kept)
    for folder in renamed:
        assert sum(one.startswith(folder) for one in kept) == sum(
            one.startswith(folder) for one in bob
        )
    assert counts(home, "shop")["traces"] == 4
    ((one,),) = traces(home, ids=[spoken("live-bob").id])
    assert one.spans[0].call and SECRETS["bob"] in one.spans[0].call.input[1].text


def test_rows_of_others_in_a_chunk_keep_their_raw_bytes(erased: Erased) -> None:
    found = [one for batch in traces(erased.home, origin="import") for one in batch]
    assert len(found) == 3
    for one in found:
        assert json.loads(raw_row(erased.home, one.raw or ""))["user"] == "bob"


def test_datasets_get_successors_and_what_was_trained_on_them_is_marked(erased: Erased) -> None:
    home, receipt = erased.home, erased.receipt
    ((old, new),) = receipt.datasets.items()
    assert {row.user for row in read_dataset(home, new or "")} == {"bob", "user-3"}
    found = {one.id: one for one in records(home, "dataset")}
    assert "successor" in found[old].retired and found[new].parents == (old,)
    assert not home.path(found[old].path).exists()
    marks = {(one.target_kind, one.target): one for one in records(home, "mark")}
    assert set(marks) == {
        ("dataset", old), ("checkpoint", "weights"), ("checkpoint", "later"),
        ("deployment", "shop-v1"),
    }  # fmt: skip
    assert all(one.cause == "erased" and (one.touched, one.of) == (1, 3) for one in marks.values())
    assert set(receipt.flagged) == {"weights", "later", "shop-v1"}


def test_the_receipt_names_nobody(erased: Erased) -> None:
    (kept,) = records(erased.home, "erasure")
    assert kept == erased.receipt and '"ada' not in encode(kept).decode()
    assert kept.removed["traces"] == 5 and kept.removed["problems"] == 1
    assert kept.searched["flywheel.duckdb"] > 0 and kept.searched["raw"] > 0
    assert [one.outcome for one in records(erased.home, "decision")].count("erased") == 1


def test_search_and_feedback_of_others_stay(erased: Erased) -> None:
    assert search(erased.home, "shop", "Countess ").ids == []
    assert len(search(erased.home, "shop", "Builder ").ids) >= 4
    assert [one.by for one in records(erased.home, "feedback")] == ["bob"]


def test_what_comes_again_is_refused_and_what_is_new_is_not(
    place: tuple[Home, Journal], tmp_path: Path
) -> None:
    home, journal = place
    receipt = gone(home, user="ada")
    journal.append(encode(spoken("late", question="Countess Lane again", user="ada", start=7)))
    journal.append(encode(spoken("other", question="who am I", user="carol", start=8)))
    Inbox(home).append([Grade(trace_id=spoken("live-ada").id, reward="late", value=0.0)])
    assert commit(home).refused == 2
    again = import_path(home, tmp_path / "export.jsonl", project="shop")
    assert (again.refused, again.traces) == (3, 0)
    assert again.duplicates == again.readable - 3, "what is refused is no duplicate beside"
    assert looked_through(home.root, *ADA) == []
    Inbox(home).append([spoken("anew", question="hello", user="ada", start=receipt.at + 1)])
    assert commit(home).traces == 1
    journal.close()


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"kind": "user", "value": "ada"}, {"ada", "shared", "copy", "sampled"}),
        ({"kind": "tenant", "value": "acme"}, {"ada", "shared", "copy", "sampled"}),
        ({"kind": "conversation", "value": "talk"}, {"ada", "shared", "copy", "sampled"}),
        ({"kind": "trace", "value": "ada"}, {"ada", "copy", "sampled"}),
        ({"kind": "trace", "value": "span-ada"}, {"ada", "copy", "sampled"}),
        ({"kind": "user", "value": "ada", "project": "other"}, set()),
        ({"kind": "retention", "ids": (spoken("bob").id,)}, {"bob"}),
    ],
)
def test_what_is_reached(reached: Home, asked: dict[str, Any], found: set[str]) -> None:
    """Copies under other ids, what nobody else owns of a conversation, what was sampled on mined
    problems; never what is known to be somebody else's."""
    with reading(reached) as database:
        assert database is not None
        ids = reach(database, Asked(**asked)).traces
        rows = database.execute("SELECT external_id, id FROM traces").fetchall()
    assert {name for name, one in rows if one in ids} == found


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("reached"))
    mine = {"user": "ada", "tenant": "acme", "conversation": "talk"}
    problem = Problem(environment="shop", messages=(), trace_id=spoken("ada").id)
    Inbox(home).append([
        spoken("ada", question="where is it", span="span-ada", **mine),
        spoken("shared", question="and then", span="s2", conversation="talk"),
        spoken("copy", question="where is it", span="s3", source="import:x", origin="import"),
        spoken("bobs", question="where is it", span="s4", source="import:y", origin="import",
               user="bob", tenant="b"),
        spoken("bob", question="what now", span="s5", user="bob", tenant="b"),
        spoken("sampled", question="where is it", span="s6", origin="rollout",
               problem_id=problem.id),
        problem,
    ])  # fmt: skip
    commit(home)
    return home


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    ["erase.before_commit", "erase.raw_written", "erase.datasets", "erase.before_replace"],
)
def test_killed_anywhere_it_goes_on(
    place: tuple[Home, Journal], where: str, tmp_path: Path
) -> None:
    home, journal = place
    journal.close()
    home = Home(home.root, lake=str(tmp_path / "lake"))
    # Not by a fork: polars has threads.
    done = subprocess.run([sys.executable, "-c", KILLED, home.root, where], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(home.erasing.iterdir())
    publish(home)  # as the hourly flow may, of rows that are not all clean yet
    (receipt,) = resume(home)
    assert receipt.left == () and not list(home.erasing.iterdir())
    assert looked_through(home.root, *ADA) == looked_through(tmp_path / "lake", *ADA) == []
    ((_, new),) = receipt.datasets.items()
    assert {row.user for row in read_dataset(home, new or "")} == {"bob", "user-3"}
    assert counts(home, "shop")["traces"] == 4
    for one in (one for batch in traces(home, origin="import") for one in batch):
        assert json.loads(raw_row(home, one.raw or ""))["user"] == "bob"


def test_half_a_plan_of_one_that_was_killed_does_not_stay(tmp_path: Path) -> None:
    """It holds what is looked for, where nothing is looked for."""
    home = Home(tmp_path)
    Inbox(home).append([spoken("live", user="ada", question="my own long sentence")])
    commit(home)
    for work in (lambda: gone(home, user="ada"), lambda: resume(home)):
        home.erasing.mkdir(exist_ok=True)
        (home.erasing / ".01.json.x").write_bytes(b"my own long sentence")
        work()
        assert not list(home.erasing.iterdir())
    assert looked_through(home.root, "own long sentence") == []


def test_what_is_committed_after_the_plan_goes_with_it_and_takes_nothing_of_others(
    tmp_path: Path,
) -> None:
    """A server or an import commits between the plan and the rows that go by it."""
    home = Home(tmp_path)
    asked = Asked(kind="user", value="ada")
    Inbox(home).append([spoken("one", user="ada", question="a sentence that bob says later")])
    commit(home)
    keep(home, plan_of(home, asked, by="eve", reason=""))
    Inbox(home).append([
        spoken("two", user="ada", question="one of ada alone", span="s2"),
        spoken("three", user="bob", question="a sentence that bob says later", span="s3"),
    ])  # fmt: skip
    commit(home)
    (receipt,) = resume(home)
    assert receipt.left == () and receipt.removed["traces"] == 2
    (left,) = (one for batch in traces(home, project="shop") for one in batch)
    assert left.user == "bob" and "bob says later" in str(left.spans)
    assert looked_through(home.root, "one of ada alone") == []


@pytest.mark.parametrize("place", ["", "store.after_commit"])
def test_an_import_that_was_under_way_brings_nothing_back(tmp_path: Path, place: str) -> None:
    """It knew of no erasure when it read: what it left is refused, and its bytes go too."""
    home, other = Home(tmp_path / "home"), Home(tmp_path / "other")
    rows = [
        {"request": {"model": "m", "user": user, "messages": [{"role": "user", "content": said}]},
         "response": {"choices": [{"message": {"role": "assistant", "content": "so"}}]}}
        for user in ("ada", "bob") for said in (f"a sentence of {user}", f"another of {user}")
    ]  # fmt: skip
    file = tmp_path / "late.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    Inbox(home).append([spoken("live", user="ada", question="my own long sentence")])
    commit(home)
    gone(home, user="ada")
    take_files(other, [file], project="shop")
    for folder in ("raw", "inbox"):
        shutil.copytree(other.root / folder, home.root / folder, dirs_exist_ok=True)
    if place:
        killed_at(place, lambda: commit(home))
        assert commit(home).traces == 0
    else:
        assert commit(home).refused == 2
    assert looked_through(home.root, "of ada") == []
    kept = [one for batch in traces(home, project="shop") for one in batch]
    assert [one.user for one in kept] == ["bob", "bob"]
    assert all(json.loads(raw_row(home, one.raw or ""))["request"]["user"] == "bob" for one in kept)
    assert len(list(home.raw.rglob("*.zst"))) == 1


@pytest.mark.parametrize("who", ["outcome", "reconciled", "shop"])
def test_who_is_called_like_a_word_of_the_house_takes_no_record_of_others_with_them(
    tmp_path: Path, who: str
) -> None:
    home = Home(tmp_path)
    said = Decision(id="d1", project="shop", outcome="reconciled", gate="", by="", reason="", at=1)
    Inbox(home).append([spoken("live", user=who, question="my own long sentence"), said])
    commit(home)
    receipt = gone(home, user=who)
    assert receipt.removed["traces"] == 1 and receipt.left == ()
    assert said in list(records(home, "decision"))
    assert receipt.searched["needles that others' data holds too"] >= 1
    assert looked_through(home.root, "own long sentence") == []


def test_damaged_files_keep_nobody_from_being_erased(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    rows = [{"id": f"chat-{who}", "user": who,
             "messages": [{"role": "user", "content": SECRETS[who]},
                          {"role": "assistant", "content": "yes"}]} for who in SECRETS]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_path(home, tmp_path / "a.jsonl", project="shop")
    (raw,) = home.raw.rglob("*.zst")
    raw.write_bytes(raw.read_bytes()[:40])
    home.responses.write_bytes(b"SQLite format 3\0" + b"chat-ada" * 200)
    group = home.runs / "r1" / "one.group"
    group.parent.mkdir(parents=True)
    group.write_bytes(b"\xc1 cut off: please\\nship to 12 Countess Lane" + b"\xc1")
    home.logs.mkdir()
    (home.logs / "old.log").write_text("a last line that was cut off: ship to 12 Countess Lane")
    receipt = gone(home, user="ada")
    assert receipt.left == () and not raw.exists()
    assert looked_through(home.root, "Countess Lane") == []
