"""Files whose rows are one trace together, and archives: bounds, damage, names that lead out."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flywheel.home import Home
from storage import zip_in
from storage.importer import import_path, raw_row
from storage.queries import traces
from storage.rows_in import Row
from storage.whole import joined, whole
from storage.zip_in import zip_files
from tests.storage.formats import agent_seeds as seeds


def lines(values: list[Any]) -> list[Row]:
    return [Row(at, json.dumps(value).encode()) for at, value in enumerate(values, 1)]


def test_rows_of_one_session_are_one_row_and_bad_ones_stay_alone():
    found = [*lines(seeds.CLAUDE), Row(9, b"{broken"), Row(10, b"", "has a problem")]
    *alone, one = joined(iter(found), "auto", 1 << 20)
    assert [row.number for row in alone] == [9, 10]
    assert json.loads(one.data) == seeds.CLAUDE and one.number == 1


def test_rows_of_their_own_stay_rows():
    found = lines([{"messages": seeds.TALK}] * 40)
    assert list(joined(iter(found), "auto", 1 << 20)) == found
    assert whole([seeds.TALK]) is None and whole(seeds.CLAUDE) == "claude_code"
    assert whole(seeds.CLAUDE, "chat_rows") is None


def test_a_session_over_the_limit_is_refused_with_its_size():
    (row,) = joined(iter(lines(seeds.CLAUDE)), "auto", 400)
    assert row.problem is not None and "over the limit of 400" in row.problem


def test_a_session_is_imported_once_and_its_bytes_are_found(home: Home, tmp_path: Path):
    file = tmp_path / "session.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in seeds.CLAUDE) + "\n{half")
    report = import_path(home, file, project="p")
    assert (report.traces, report.quarantined, report.formats) == (1, 1, {"claude_code": 1})
    (trace,) = (one for batch in traces(home, project="p") for one in batch)
    assert json.loads(raw_row(home, trace.raw or "")) == seeds.CLAUDE
    again = import_path(home, file, project="p")
    assert (again.traces, again.spans) == (0, 0)


def packed(path: Path, members: dict[str, str], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


HEADER = {key: value for key, value in seeds.INSPECT.items() if key != "samples"}
LOG = {
    "_journal/start.json": json.dumps(HEADER), "header.json": json.dumps(HEADER),
    "samples/1_epoch_1.json": json.dumps(seeds.SAMPLE), "summaries.json": "[]",
    "reductions.json": "[]", "../../samples/evil.json": json.dumps(seeds.SAMPLE),
}  # fmt: skip


def test_both_forms_of_a_log_give_the_same_traces(tmp_path: Path):
    packed(tmp_path / "log.eval", LOG)
    (tmp_path / "log.json").write_text(json.dumps(seeds.INSPECT))
    found = []
    for name in ("log.eval", "log.json"):
        home = Home(tmp_path / f"home-{name}")
        report = import_path(home, tmp_path / name, project="p")
        assert (report.traces, report.quarantined) == (2, 0), report.rejects
        assert {"results", "stats"} <= report.unmapped_fields.keys()
        found.append([(t.id, t.spans) for batch in traces(home, project="p") for t in batch])
    assert sorted(found[0]) == sorted(found[1])


def test_an_archive_of_files_is_each_of_its_files(home: Home, tmp_path: Path):
    text = "\n".join(json.dumps(row) for row in seeds.CLAUDE)
    members = {"a/session.jsonl": text, "b.json": json.dumps([seeds.ALPACA]), "read.me": "hi"}
    report = import_path(home, packed(tmp_path / "all.zip", members), project="p")
    assert report.formats == {"alpaca": 1, "claude_code": 1} and report.traces == 2
    bad = packed(tmp_path / "bad.zip", {"x.jsonl": "{nothing"})
    (reject,) = import_path(home, bad, project="p").rejects
    assert reject.path.endswith("bad.zip!x.jsonl")


def rows_of(path: Path, max_line: int = 1 << 20) -> list[Row]:
    return [row for member in zip_files(path, max_line) for row in member.rows]


@pytest.mark.parametrize("name", ["samples/2_epoch_1.json", "header.json"])
def test_a_member_over_the_limit_is_refused_alone(tmp_path: Path, name: str):
    path = packed(tmp_path / "log.eval", {**LOG, name: json.dumps({"a": "x" * 5000})})
    refused = [row for row in rows_of(path, 4900) if row.problem]
    assert len(refused) == 1 and name in (refused[0].problem or "")


def test_a_bomb_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(zip_in, "FREE_EXPANSION", 1 << 20)
    zeros = "0" * (8 << 20)
    members = {**LOG, "samples/a.json": zeros, "samples/b.json": zeros}
    path = packed(tmp_path / "bomb.eval", members)
    refused = [row.problem or "" for row in rows_of(path, 64 << 20) if row.problem]
    assert any("as no log does" in problem for problem in refused)


def test_too_many_members_and_damage_are_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = packed(tmp_path / "log.eval", LOG)
    data = path.read_bytes()
    monkeypatch.setattr(zip_in, "MOST_MEMBERS", 3)
    (row,) = rows_of(path)
    assert "of over 3 files" in (row.problem or "")
    monkeypatch.setattr(zip_in, "MOST_MEMBERS", 100)
    at = data.index(b"header.json") + 20
    for bad in (data[: len(data) // 2], data[:-30], data[:at] + b"\xff" * 40 + data[at + 40 :]):
        path.write_bytes(bad)
        assert any(row.problem for row in rows_of(path))
    path.write_bytes(b"PK\x05\x06" + b"\0" * 18)
    (row,) = rows_of(path)
    assert "without a .json" in (row.problem or "")


def with_zip64(path: Path, members: int, name: bytes = b"x" * 20) -> None:
    """An archive whose old end record says one member, while another has all of them."""
    import struct

    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", len(name)) + bytes(16) + name
    table, start = entry * members, b"PK\x03\x04" + bytes(26)
    ends = struct.pack(
        "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, members, members, len(table), len(start)
    )
    ends += struct.pack("<4sLQL", b"PK\x06\x07", 0, len(start) + len(table), 1)
    ends += struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), len(start), 0)
    path.write_bytes(start + table + ends)


@pytest.mark.parametrize(
    ("members", "says"), [(150_000, "of over 100,000 files"), (1_500_000, "table of members of 99")]
)
def test_members_are_counted_whatever_the_records_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: int, says: str
):
    made = []
    monkeypatch.setattr(zipfile, "ZipInfo", lambda *_: made.append(0))
    with_zip64(tmp_path / "lies.zip", members)
    (row,) = rows_of(tmp_path / "lies.zip")
    assert says in (row.problem or "") and not made


def test_a_table_said_to_be_larger_than_any_memory_is_refused(tmp_path: Path):
    path = packed(tmp_path / "log.zip", {"x.json": "{}"})
    data = bytearray(path.read_bytes())
    data[-10:-6] = b"\xfe\xff\xff\xff"
    path.write_bytes(data)
    (row,) = rows_of(path)
    assert row.problem


def test_a_locked_member_is_refused(tmp_path: Path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.json", "{}")
    data = bytearray(buffer.getvalue())
    data[6] |= 1  # the flag of encryption, in the member's header and in the table
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path = tmp_path / "locked.zip"
    path.write_bytes(bytes(data))
    (row,) = rows_of(path)
    assert "cannot be unpacked" in (row.problem or "")


def test_json_that_is_nested_too_deep_is_refused(home: Home, tmp_path: Path):
    deep = "[" * 10_000 + "]" * 10_000
    path = packed(tmp_path / "log.eval", {**LOG, "samples/deep.json": '{"events": ' + deep + "}"})
    report = import_path(home, path, project="p")
    assert report.traces == 2 and report.quarantined == 1
    assert "nested deeper" in report.rejects[0].reason
