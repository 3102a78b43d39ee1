"""An erasure takes all that is somebody's out of a home, and leaves all that is not."""

import gzip
import json
import os
import sqlite3
from pathlib import Path

import duckdb
import pytest
import zstandard

from flywheel.home import Home
from flywheel.records import Feedback
from storage.committer import commit
from storage.datasets import read_dataset
from storage.envelope import encode
from storage.erasure import erase, resume
from storage.importer import import_path, raw_row
from storage.inbox import Inbox
from storage.journal import Journal
from storage.queries import counts, records, traces
from storage.reach import Asked
from storage.search import search
from tests.storage.scattered import SECRETS, TOKENS, scattered
from tests.storage.store_parts import killed_at, spoken

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


def gone(home: Home, **asked: str):  # type: ignore[no-untyped-def]
    ((kind, value),) = asked.items()
    return erase(home, Asked(kind=kind, value=value), by="eve", reason="asked to")  # type: ignore[arg-type]


def test_nothing_is_left_of_one_person_and_everything_of_the_other(
    place: tuple[Home, Journal],
) -> None:
    home, journal = place
    before = looked_through(home.root, *ADA)
    assert len({one.split(":")[0] for one in before}) > 15
    others = looked_through(home.root, "Builder Road", "Y-9902-BOB")
    receipt = gone(home, user="ada")
    assert receipt.left == () and receipt.done
    assert looked_through(home.root, *ADA) == []
    tokens = ", ".join(map(str, TOKENS["ada"][12:28]))
    assert looked_through(home.root, tokens, tokens.replace(" ", "")) == []
    kept = looked_through(home.root, "Builder Road", "Y-9902-BOB")
    renamed = ("raw/", "datasets/")  # under new digests and ids
    left, there = ([one for one in some if not one.startswith(renamed)] for some in (kept, others))
    assert set(there) - set(left) == set()
    assert sum(one.startswith("raw/") for one in kept) == sum(
        one.startswith("raw/") for one in others
    )
    assert counts(home, "shop")["traces"] == 4
    (one,) = next(traces(home, ids=[spoken("live-bob").id]))
    assert SECRETS["bob"] in one.spans[0].call.input[1].text  # type: ignore[union-attr]
    journal.close()


def test_rows_of_others_in_a_chunk_keep_their_raw_bytes(place: tuple[Home, Journal]) -> None:
    home, _ = place
    gone(home, user="ada")
    found = [one for batch in traces(home, origin="import") for one in batch]
    assert len(found) == 3
    for one in found:
        assert json.loads(raw_row(home, one.raw or ""))["user"] == "bob"


def test_datasets_get_successors_and_what_was_trained_on_them_is_marked(
    place: tuple[Home, Journal],
) -> None:
    home, _ = place
    receipt = gone(home, user="ada")
    ((old, new),) = receipt.datasets.items()
    rows = read_dataset(home, new or "")
    assert {row.user for row in rows} == {"bob", "user-3"}
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


def test_the_receipt_names_nobody(place: tuple[Home, Journal]) -> None:
    home, _ = place
    receipt = gone(home, user="ada")
    (kept,) = records(home, "erasure")
    assert kept == receipt and "ada" not in encode(kept).decode()
    assert kept.removed["traces"] == 5 and kept.removed["problems"] == 1
    assert kept.searched["flywheel.duckdb"] > 0 and kept.searched["raw"] > 0
    assert [one.outcome for one in records(home, "decision")].count("erased") == 1


@pytest.mark.parametrize(
    "asked", [{"tenant": "acme"}, {"conversation": "talk-ada"}, {"trace": "live-ada"}]
)
def test_a_tenant_a_conversation_a_trace(
    place: tuple[Home, Journal], asked: dict[str, str]
) -> None:
    home, _ = place
    assert gone(home, **asked).left == ()
    assert looked_through(home.root, "live-ada", "talk-ada", "Dear ada") == []
    assert counts(home, "shop")["traces"] == 7


def test_what_comes_again_is_refused_and_counted(
    place: tuple[Home, Journal], tmp_path: Path
) -> None:
    home, journal = place
    gone(home, user="ada")
    late = spoken("late", question="Ada asks for Countess Lane again", user="ada", start=7)
    journal.append(encode(late))
    journal.append(encode(spoken("new", question="who am I", user="carol", start=8)))
    assert commit(home).refused == 1
    again = import_path(home, tmp_path / "export.jsonl", project="shop")
    assert (again.refused, again.traces) == (3, 0)
    assert looked_through(home.root, *ADA) == []
    assert counts(home, "shop")["traces"] == 5


def test_what_the_person_says_later_is_new_data(place: tuple[Home, Journal]) -> None:
    home, _ = place
    receipt = gone(home, user="ada")
    Inbox(home).append([spoken("anew", user="ada", start=receipt.at + 1)])
    assert commit(home).traces == 1


def test_twice_is_once(place: tuple[Home, Journal]) -> None:
    home, _ = place
    gone(home, user="ada")
    again = gone(home, user="ada")
    assert again.left == () and again.removed.get("traces") is None
    assert counts(home, "shop")["traces"] == 4


def test_search_and_feedback_of_others_stay(place: tuple[Home, Journal]) -> None:
    home, _ = place
    gone(home, user="ada")
    assert search(home, "shop", "Countess ").ids == []
    assert len(search(home, "shop", "Builder ").ids) >= 4
    assert [one.by for one in records(home, "feedback")] == ["bob"]
    assert isinstance(records(home, "feedback")[0], Feedback)


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    ["erase.planned", "erase.before_commit", "erase.removed", "erase.raw_written",
     "erase.datasets", "erase.before_replace", "erase.rewritten"],
)  # fmt: skip
def test_killed_anywhere_it_goes_on(place: tuple[Home, Journal], where: str) -> None:
    home, journal = place
    journal.close()
    killed_at(where, lambda: gone(home, user="ada"))
    assert list(home.erasing.iterdir())
    (receipt,) = resume(home)
    assert receipt.left == () and not list(home.erasing.iterdir())
    assert looked_through(home.root, *ADA) == []
    ((_, new),) = receipt.datasets.items()
    assert {row.user for row in read_dataset(home, new or "")} == {"bob", "user-3"}
    assert counts(home, "shop")["traces"] == 4
    assert os.path.getsize(home.database) > 0
