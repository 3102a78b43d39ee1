"""What others left in a lake's inbox: what is no segment stops nobody and is not believed."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from flywheel.errors import CorruptFile
from flywheel.home import Home
from flywheel.ids import digest_bytes
from flywheel.records import Feedback
from storage import foreign, inbox, lake_inbox, prepared
from storage.absorb import Line, absorb
from storage.committer import commit
from storage.lake import open_lake
from storage.prepared import Tables
from storage.raw import RawStore
from tests.storage.store_parts import everything, spoken

GOOD = [spoken("a"), spoken("b", answer="another", question="café", raw="0" * 32 + "#1+2"),
        spoken("c", answer="third"), everything(),
        Feedback(project="shop", target="a", value=1.0)]  # fmt: skip


def plain_of(tables: Tables) -> bytes:
    packed = {
        name: (table.schema.serialize().to_pybytes(),
               table.combine_chunks().to_batches()[0].serialize().to_pybytes())
        for name, table in tables.items()
    }  # fmt: skip
    return prepared.HEADER + msgspec.msgpack.encode(packed)


def changed(table: str, column: str, made: Callable[[int], Any]) -> bytes:
    tables = prepared.tables(prepared.prepare(GOOD))
    at = tables[table].schema.get_field_index(column)
    rows = tables[table].num_rows
    tables[table] = tables[table].set_column(at, column, made(rows))
    return inbox.packed(plain_of(tables))


def texts(text: str | None) -> Callable[[int], Any]:
    return lambda rows: pa.array([text] * rows, pa.large_string())


def beyond(rows: int) -> Any:
    """Texts whose offsets lead out of their buffer; the last one is right."""
    offsets = struct.pack(f"<{rows + 1}q", *[0] + [1 << 40] * (rows - 1) + [3])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")]
    return pa.Array.from_buffers(pa.large_string(), rows, buffers)


def claiming(size: int) -> bytes:
    """A frame that says that it unpacks to `size` bytes."""
    return b"\x28\xb5\x2f\xfd\xe4" + struct.pack("<Q", size) + inbox.packed(b"x")[6:]


HOSTILE = {
    "cut": inbox.packed(prepared.prepare(GOOD))[:-20],
    "none": b"", "no frame": b"hello",
    "claims 8 GiB": claiming(8 << 30), "claims 2^63": claiming(1 << 63),
    "claims 400 MiB": claiming(400 << 20),
    "two frames": inbox.packed(b"flywheel-segment 1 0\n") * 2,
    "later version of lines": inbox.packed(b"flywheel-segment 9 0\n"),
    "later version of rows": inbox.packed(b"flywheel-rows 9\n\x80"),
    "no map": inbox.packed(prepared.HEADER + b"\xff"),
    "no Arrow": inbox.packed(prepared.HEADER + msgspec.msgpack.encode({"traces": (b"a", b"b")})),
    "spans alone": inbox.packed(
        plain_of({"spans": prepared.tables(prepared.prepare(GOOD))["spans"]})
    ),
    "another type": changed("traces", "project", lambda rows: pa.array([1] * rows, pa.int64())),
    "no id": changed("traces", "id", texts(None)),
    "no project": changed("traces", "project", texts(None)),
    "unknown kind": changed("spans", "kind", texts("evil")),
    "offsets": changed("traces", "id", beyond),
    "no JSON": changed("messages", "body", texts("{")),
}  # fmt: skip


def test_no_hostile_segment_stops_the_others(home: Home, tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    for number, data in enumerate(HOSTILE.values()):
        lake.put_new(f"{lake_inbox.INBOX}{number}.segment", data)
    for name in ("x.txt", "in/folder.segment", "a" * 245 + ".segment", "journal%3Ax.segment"):
        lake.put_new(lake_inbox.INBOX + name, inbox.packed(b"flywheel-segment 1 0\n"))
    lake.put_new(f"{lake_inbox.INBOX}zz.segment", inbox.packed(prepared.prepare(GOOD)))
    assert lake_inbox.fetch(home, lake) == 1
    assert commit(home).traces == 4
    assert not list(lake.list("inbox/")) and not inbox.Inbox(home).pending()
    kept = [one for one in home.quarantine.iterdir() if one.suffix != ".why"]
    reasons = {
        msgspec.json.decode(one.read_bytes())["reason"] for one in home.quarantine.glob("*.why")
    }
    assert len(kept) == len(HOSTILE) + 4
    assert all(one.startswith("sent by another machine: ") for one in reasons)


@pytest.mark.parametrize("column", ["key", "id"])
def test_no_message_stands_under_an_id_that_is_not_its_own(home: Home, column: str) -> None:
    """Whoever says it later would be shown with the other's words."""
    wrong = {"key": lambda rows: pa.array([7] * rows, pa.int64()), "id": texts("0" * 32)}[column]
    data = changed("messages", column, wrong)
    if column == "id":
        with pytest.raises(CorruptFile, match="no record"):
            foreign.segment("a.segment", data)
        return
    made = inbox.opened(foreign.segment("a.segment", data))
    assert made == prepared.prepare(GOOD)


def test_what_is_sound_comes_as_it_was_sent() -> None:
    for data in (inbox.packed(prepared.prepare(GOOD)), inbox.packed(b"flywheel-segment 1 0\n")):
        assert foreign.segment("01J%3A.segment", data) == data


def test_raw_bytes_are_those_of_their_name(home: Home, tmp_path: Path) -> None:
    """Else the right ones could never be kept under it."""
    lake, key = open_lake(str(tmp_path / "lake")), digest_bytes(b"right")
    wrong = {
        f"{key[:2]}/{key}.zst": inbox.packed(b"wrong"), f"zz/{key}.zst": inbox.packed(b"right"),
        f"{key[:2]}/{key}.txt": b"", f"{key[:2]}/x/{key}.zst": inbox.packed(b"right"),
    }  # fmt: skip
    for name, data in wrong.items():
        lake.put_new(lake_inbox.RAW + name, data)
    lake_inbox.fetch(home, lake)
    assert not home.raw.exists() and len(list(home.quarantine.glob("*.why"))) == len(wrong)
    lake.put_new(f"{lake_inbox.RAW}{key[:2]}/{key}.zst", inbox.packed(b"right"))
    lake_inbox.fetch(home, lake)
    assert RawStore(home).get(key) == b"right"


def test_what_is_too_large_to_be_held_is_left_and_told(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    lake.put_new(f"{lake_inbox.INBOX}a.segment", bytes(2000))
    monkeypatch.setattr(foreign, "LARGEST", 1000)
    assert lake_inbox.fetch(home, lake) == 0
    (why,) = home.quarantine.glob("*.why")
    assert "2000 bytes" in why.read_text() and list(lake.list(lake_inbox.INBOX))


@pytest.mark.parametrize("place", ["../other", "/etc", "datasets/../../x"])
def test_no_record_names_files_outside_of_the_home(home: Home, place: str) -> None:
    from storage.database import writing

    line = (
        b'["dataset",{"id":"d","project":"shop","path":"%b","rows":1,"rules":[]}]' % place.encode()
    )
    with writing(home, wait_s=5) as database:
        done = absorb(database, 1, [Line("s", 1, line)])
    assert "outside of the home" in done.bad[0][1] and not done.counts["dataset"]
