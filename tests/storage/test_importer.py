"""Imports into a real store: once each, in any file, with every fault named and nothing lost."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from click.testing import CliRunner

from app.cli import flywheel
from flywheel import progress
from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Text, Trace, Truncated
from storage.chunk import read_chunk
from storage.importer import ImportReport, import_path, raw_row
from storage.judgements import feedback_for
from storage.queries import counts, traces
from storage.raw import RawStore
from tests.storage.store_parts import killed_at


def chat(number: int, **more: Any) -> dict[str, Any]:
    return {
        "trace_id": f"t{number}",
        "span_id": f"s{number}",
        "session_id": f"c{number % 3}",
        "start_ns": 1_793_500_000_000_000_000 + number,
        "request": {"model": "m", "messages": [{"role": "user", "content": f"question {number}"}]},
        "response": {
            "id": f"r{number}",
            "choices": [
                {"message": {"role": "assistant", "content": f"answer {number}"},
                 "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        },
        **more,
    }  # fmt: skip


def lines(*rows: Any) -> bytes:
    return b"".join(
        (row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows
    )


def held(home: Home) -> list[Trace]:
    found = [trace for batch in traces(home, project="p") for trace in batch]
    return sorted(found, key=lambda trace: trace.external_id)


@pytest.fixture
def bring(home: Home, tmp_path: Path):
    """Writes a file and imports it."""

    def one(data: bytes, name: str = "in.jsonl", **options: Any) -> ImportReport:
        path = tmp_path / name
        path.write_bytes(data)
        return import_path(home, path, project="p", **options)

    return one


def test_the_report_has_its_fields_and_is_json(bring):
    report = bring(lines(*(chat(number, team="a") for number in range(5)), b"{half"))
    plain = json.loads(msgspec.json.encode(report))
    assert plain == {
        "files": 1,
        "traces": 5,
        "spans": 5,
        "duplicates": 0,
        "quarantined": 1,
        "unmapped_fields": {"team": 5},
        "formats": {"openai_chat": 5},
        "readable": 5,
        "refused": 0,
        "rejects": plain["rejects"],
    }
    (reject,) = plain["rejects"]
    assert reject["line"] == 6 and reject["path"].endswith("in.jsonl")


def test_the_same_file_twice_adds_nothing(bring, home: Home):
    data = lines(*(chat(number, feedback=1) for number in range(20)), b"{half")
    first = bring(data)
    before = counts(home, "p")
    for name in ("in.jsonl", "copy.jsonl"):
        again = bring(data, name)
        assert (again.traces, again.spans, again.duplicates) == (0, 0, 20)
        assert (again.readable, again.quarantined) == (first.readable, first.quarantined)
        assert again.rejects[0].line == 21 and again.rejects[0].path.endswith(name)
    assert counts(home, "p") == before


@pytest.mark.slow
def test_the_same_rows_in_any_file_are_the_same_traces(bring, home: Home):
    rows = [chat(number) for number in range(8)]
    bring(lines(*rows))
    for name, data in {
        "array.json": json.dumps(rows, indent=1).encode(),
        "packed.gz": gzip.compress(lines(*rows)),
        "packed.zst": zstandard.compress(lines(*reversed(rows))),
        "doubled.jsonl": lines(*rows, *rows),
    }.items():
        report = bring(data, name)
        assert (report.traces, report.spans) == (0, 0), name
        assert report.duplicates == report.readable
    assert len(held(home)) == 8


@pytest.mark.slow
def test_a_changed_copy_adds_what_is_new(bring, home: Home):
    bring(lines(*(chat(number) for number in range(3000))))
    rows = [chat(number) for number in range(3000)]
    report = bring(lines(*rows[:1500], chat(9999), *rows[1500:]))
    assert (report.traces, report.spans, report.duplicates) == (1, 1, 3000)
    assert counts(home, "p")["traces"] == 3001


def test_projects_do_not_share_traces(bring, home: Home, tmp_path: Path):
    bring(lines(chat(1)))
    report = import_path(home, tmp_path / "in.jsonl", project="q")
    assert report.traces == 1


def test_mixed_rows_are_recognised_one_by_one(bring):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    turns = [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]
    report = bring(
        lines(chat(1), {"messages": talk}, {"conversations": turns}, chat(2), {"odd": 1}, 5)
    )
    assert report.formats == {"openai_chat": 2, "chat_rows": 1, "sharegpt": 1}
    reasons = [(reject.line, reject.reason) for reject in report.rejects]
    assert [line for line, _ in reasons] == [5, 6]
    assert reasons[0][1].startswith("is of no known format (an object with odd)")


def test_a_stated_format_is_kept_to(bring):
    report = bring(lines(chat(1), {"messages": []}), format="openai_chat")
    assert report.formats == {"openai_chat": 2}
    report = bring(lines(chat(1)), format="sharegpt")
    assert report.readable == 0 and report.rejects[0].field == "conversations"
    with pytest.raises(UsageError, match="no format 'csv'"):
        bring(b"", format="csv")


BAD = [
    (b'{"request": {"messages": [', None, "is cut off"),
    (b'{"request": {"messages": "hi"}}', "request.messages", "is text, not a list of messages"),
    (b"[" * 10_000 + b"]" * 10_000, None, "is nested deeper"),
    (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, None, "is nested deeper"),
    (b"\0" * 1000, None, "nothing but blanks or NUL"),
    (b"not json", None, "is not JSON"),
    (b"null", None, "is of no known format (null)"),
    (b'"text"', None, "is of no known format (a str)"),
    (b"[]", None, "is of no known format (a list)"),
]


def test_every_bad_row_is_named_and_the_good_ones_stay(bring, home: Home):
    rows: list[Any] = []
    for number, (data, _, _) in enumerate(BAD):
        rows += [chat(number), data]
    report = bring(lines(*rows))
    assert (report.traces, report.quarantined) == (len(BAD), len(BAD))
    for at, (reject, (data, field, reason)) in enumerate(zip(report.rejects, BAD, strict=True)):
        assert (reject.line, reject.field) == (2 * at + 2, field)
        assert reason in reject.reason
        kept = [json.loads(line) for line in (home.root / reject.kept).read_bytes().splitlines()]
        assert kept[at]["data"].encode() == data and kept[at]["reason"] == reject.reason


def test_surrogates_nul_and_good_emoji_are_stored(bring, home: Home):
    said = b'{"role": "user", "content": "a\\ud83d b\\u0000c \\ud83d\\ude00"}'
    row = json.dumps(chat(1)).encode().replace(
        b'{"role": "user", "content": "question 1"}', said
    )  # fmt: skip
    report = bring(lines(chat(0), row, chat(2)))
    assert (report.traces, report.quarantined) == (3, 0)
    assert held(home)[1].spans[0].call.input[0].text == "a\ufffd b\ufffdc \U0001f600"


def test_numbers_out_of_range_lose_no_row(bring, home: Home):
    row = chat(1, start_ns=2**80, huge=2**70, odd=float("nan"))
    row["response"]["usage"] = {"prompt_tokens": 2**70, "completion_tokens": -3}
    row["request"]["seed"] = 2**64
    report = bring(lines(row, chat(2)))
    assert (report.traces, report.quarantined) == (2, 0)
    span = held(home)[0].spans[0]
    assert span.start is None and span.call.usage.input_tokens is None
    assert span.attributes["huge"] == 2**70 and span.attributes["odd"] == "NaN"
    assert span.call.sampling.other["seed"] == str(2**64)


@pytest.mark.slow
def test_a_fifty_megabyte_line_is_read_and_one_over_the_limit_is_not(bring, home: Home):
    big = chat(1)
    big["request"]["messages"][0]["content"] = "x" * (50 << 20)
    data = lines(chat(0), big, chat(2))
    report = bring(data)
    assert (report.traces, report.quarantined) == (3, 0)
    (cut,) = held(home)[1].spans[0].call.input[0].parts
    assert isinstance(cut, Truncated) and cut.size == 50 << 20
    assert RawStore(home).get(cut.digest) == b"x" * (50 << 20)
    report = bring(data, max_line=1 << 20)
    assert (report.readable, report.quarantined) == (2, 1)
    assert report.rejects[0].line == 2 and "over the limit" in report.rejects[0].reason


def test_the_bytes_that_a_trace_came_from_come_back(bring, home: Home):
    rows = [json.dumps(chat(number), indent=number % 2).encode() for number in range(4)]
    bring(b"[" + b",\n".join(rows) + b"]", "in.json")
    assert [raw_row(home, trace.raw) for trace in held(home)] == rows


def test_feedback_of_rows_arrives_with_them(bring, home: Home):
    bring(lines(chat(1, feedback=1), chat(2, feedback={"score": 0.5, "comment": "slow"}), chat(3)))
    found = held(home)
    said = feedback_for(home, found)
    assert [[one.value for one in said.get(trace.id, [])] for trace in found] == [[1], [0.5], []]


def test_spans_of_one_trace_in_several_files_become_one_tree(home: Home, tmp_path: Path):
    trace, parent, child = (
        "0af7651916cd43dd8448eb211c80319c",
        "b7ad6b7169203331",
        "00f067aa0ba902b7",
    )

    def document(span: str, above: str | None) -> bytes:
        one = {"traceId": trace, "spanId": span, "parentSpanId": above, "name": span,
               "startTimeUnixNano": "1793500000000000000", "attributes": []}  # fmt: skip
        return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one, one]}]}]}).encode()

    (tmp_path / "1-child.json").write_bytes(document(child, parent))
    import_path(home, tmp_path / "1-child.json", project="p")
    (alone,) = held(home)
    assert alone.spans[0].parents == (parent,)
    assert any("incomplete" in reason for reason in alone.fidelity_reasons)
    (tmp_path / "2-parent.json").write_bytes(document(parent, None))
    report = import_path(home, tmp_path, project="p")
    assert (report.traces, report.spans) == (0, 1)
    (whole,) = held(home)
    assert {span.id: span.parents for span in whole.spans} == {child: (parent,), parent: ()}
    assert not any("incomplete" in reason for reason in whole.fidelity_reasons)


def test_several_paths_are_one_import(home: Home, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        Path(f"{number}.jsonl").write_bytes(lines(chat(number)))
    said = CliRunner().invoke(flywheel, ["import", "1.jsonl", "2.jsonl", "--json"])
    assert said.exit_code == 0, said.output
    found = [trace for batch in traces(home, project="default") for trace in batch]
    assert len(found) == 2


def test_a_span_exported_again_under_new_ids_is_counted_once(bring, home: Home):
    bring(lines(chat(1), chat(1, span_id="again"), chat(1, span_id="once more")))
    assert counts(home, "p")["input_tokens"] == 3


def test_folders_with_all_sorts_of_files(home: Home, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "good.jsonl").write_bytes(lines(chat(1)))
    (folder / "empty.json").write_bytes(b"")
    (folder / "notes.txt").write_text("nothing for us")
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(os.urandom(10_000))[:5_000])
    (folder / "table.parquet").write_bytes(b"PAR1" + b"\0" * 50)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "up").symlink_to(folder)
    report = import_path(home, folder, project="p")
    assert (report.files, report.traces, report.quarantined) == (6, 1, 5)
    reasons = {Path(reject.path).name: reject.reason for reject in report.rejects}
    assert reasons["empty.json"] == "is empty: there is nothing to read"
    assert "is not JSON" in reasons["notes.txt"]
    assert "is cut off" in reasons["cut.jsonl.gz"]
    assert "Parquet" in reasons["table.parquet"]
    assert "cannot be read" in reasons["loop"]


def test_a_name_that_is_no_utf8_is_written_out_in_the_report(home: Home, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.jsonl"))
    odd.write_bytes(lines(chat(1)) + b"half{")
    report = import_path(home, folder, project="p")
    assert (report.traces, report.quarantined) == (1, 1)
    assert Path(report.rejects[0].path).name == "bad\\xff.jsonl"
    assert msgspec.json.encode(report)


def test_nothing_readable_is_reported_as_such(home: Home, tmp_path: Path):
    report = import_path(home, tmp_path / "missing", project="p")
    assert (report.files, report.readable, report.quarantined) == (1, 0, 1)
    assert report.rejects[0].reason == "cannot be read: No such file or directory"


def test_many_rejects_are_counted_and_only_the_first_are_named(bring, monkeypatch):
    monkeypatch.setattr("storage.tally.MOST_REJECTS", 10)
    report = bring(lines(chat(1), *[b"{half"] * 25))
    assert report.quarantined == 25 and len(report.rejects) == 10


def test_a_lost_receipt_costs_time_and_changes_nothing(bring, home: Home):
    data = lines(*(chat(number) for number in range(5)))
    bring(data)
    before = held(home)
    for path in home.imports.iterdir():
        path.write_bytes(b"{torn")
    report = bring(data)
    assert (report.traces, report.duplicates, held(home)) == (0, 5, before)


def test_a_receipt_without_its_segment_does_not_count(bring, home: Home):
    data = lines(*(chat(number) for number in range(5)))
    bring(data)
    home.database.unlink()
    report = bring(data)
    assert report.traces == 5 and len(held(home)) == 5


def test_progress_is_reported(bring):
    seen: list[tuple[str, int, int | None]] = []
    stop = progress.listen(lambda step, done, total, note: seen.append((step, done, total)))
    data = lines(chat(1))
    bring(data)
    stop()
    assert ("import", 0, len(data)) in seen and ("import", len(data), len(data)) in seen


def test_a_fault_that_no_format_foresaw_rejects_the_row_alone(monkeypatch):
    from storage import chunk
    from storage.formats.parsed import Format
    from storage.rows_in import Row

    def read(row: Any, context: Any) -> Any:
        raise KeyError("surprise")

    monkeypatch.setattr(chunk, "FORMATS", {"odd": Format(lambda sample: True, read)})
    found = read_chunk([Row(1, b"{}")], "raw", "p", "auto", lambda data: "")
    assert found.rejects[0][1].reason == "has a shape that odd cannot read (KeyError: 'surprise')"


def test_text_of_a_stored_message_is_what_was_sent(bring, home: Home):
    bring(lines(chat(1)))
    (trace,) = held(home)
    assert trace.spans[0].call.choices[0].message.parts == (Text(text="answer 1"),)
    assert trace.fidelity == "renderable"


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["store.segment_written", "store.before_commit", "store.after_commit"]
)
def test_an_import_that_is_killed_is_finished_by_the_next(bring, home: Home, tmp_path: Path, place):
    data = lines(*(chat(number, feedback=1) for number in range(1500)), b"{half")
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    killed_at(place, lambda: import_path(home, path, project="p"))
    bring(data)
    report = bring(data)
    assert (report.traces, report.spans, report.quarantined) == (0, 0, 1)
    clean = Home(tmp_path / "clean")
    import_path(clean, path, project="p")
    assert held(home) == held(clean)
    assert counts(home, "p") == counts(clean, "p")


def test_bad_spans_of_a_batch_are_named_and_point_to_the_batch(bring, home: Home):
    good = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "n", "attributes": []}
    spans = [good, {"spanId": "c" * 16}, {**good, "spanId": 5}]
    data = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    report = bring(data, "in.json")
    assert (report.traces, report.spans, report.quarantined) == (1, 1, 2)
    assert [reject.field for reject in report.rejects] == [
        "resourceSpans[0].scopeSpans[0].spans[1].traceId",
        "resourceSpans[0].scopeSpans[0].spans[2].spanId",
    ]
    kept = (home.root / report.rejects[0].kept).read_bytes().splitlines()
    assert [raw_row(home, json.loads(line)["raw"]) for line in kept] == [data, data]
