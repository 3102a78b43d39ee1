"""Lines of records become rows, inside the committer's transaction.

Enter lines as they lay in segments and journals; leave rows of every table, and what could not be
understood. A line whose hash was taken in before is not read again.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from flywheel.errors import BadRecord
from flywheel.records import Trace
from storage import columns, entries
from storage.changes import add_changed
from storage.envelope import decode_body, identity, split
from storage.merge import merge
from storage.rows import bodies, fetch, insert, load, no_collection, remove, retire, unknown

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ONCE = ("trace", "grade", "feedback")
"""Kinds that a known line never changes. The others may be said again after something else was."""

_PLACES = {"dataset": "path", "checkpoint": "path", "deployment": "adapter"}
"""Kinds whose files are in the home, and the field that says where: relative to it."""


@dataclass(frozen=True)
class Line:
    source: str
    """Segment or journal."""
    place: int
    """Its number there, from 1; a journal's: its byte offset."""
    data: bytes


@dataclass
class Absorbed:
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[Line, str]] = field(default_factory=list)
    """Lines that could not be understood, with the reason."""
    refused: list[tuple[Line, Any]] = field(default_factory=list)
    """Lines of what was erased, with what they say: nothing of them may stay."""


def absorb(
    database: "DuckDBPyConnection",
    sequence: int,
    lines: list[Line],
    refuses: Callable[[object], bool] | None = None,
) -> Absorbed:
    """Merges `lines` under ledger sequence `sequence`, but for records that `refuses` names."""
    done = Absorbed()
    with no_collection():
        _absorb(database, sequence, lines, done, refuses)
    return done


def _absorb(
    database: "DuckDBPyConnection",
    sequence: int,
    lines: list[Line],
    done: Absorbed,
    refuses: Callable[[object], bool] | None,
) -> None:
    records = _fresh(database, sequence, lines, done, refuses)
    if traces := [one for kind, one in records if kind == "trace"]:
        absorb_traces(database, sequence, traces, done)
    for kind in entries.TABLES:
        if found := [one for named, one in records if named == kind]:
            _absorb_entries(database, sequence, kind, found, done)


def _fresh(
    database: "DuckDBPyConnection",
    sequence: int,
    lines: list[Line],
    done: Absorbed,
    refuses: Callable[[object], bool] | None,
) -> list[tuple[str, Any]]:
    """What of `lines` was not taken in before, read."""
    hashed: dict[bytes, tuple[Line, str, bytes]] = {}
    again: list[tuple[Line, str, bytes]] = []
    for line in lines:
        try:
            kind, body = split(line.data)
        except BadRecord as error:
            done.bad.append((line, error.reason))
            continue
        if kind not in _ONCE:
            again.append((line, kind, body))
            continue
        key = hashlib.blake2b(line.data, digest_size=16).digest()
        done.counts["duplicates"] += key in hashed
        hashed.setdefault(key, (line, kind, body))
    new = unknown(database, "parts", "BLOB", hashed, key="hash")
    done.counts["duplicates"] += len(hashed) - len(new)
    records, taken = [], []
    for key, (line, kind, body) in hashed.items():
        if key in new and (one := _read(line, kind, body, done)) is not None:
            if refuses is not None and refuses(one):
                done.refused.append((line, one))
                continue
            records.append((kind, one))
            taken.append((key, sequence))
    insert(database, "parts", {"hash": "BLOB", "sequence": "BIGINT"}, taken)
    for line, kind, body in again:
        if (one := _read(line, kind, body, done)) is not None:
            records.append((kind, one))
    return records


def _read(line: Line, kind: str, body: bytes, done: Absorbed) -> Any:
    """The record; None = it is none, which is noted."""
    try:
        record = decode_body(kind, body)
        _check(kind, record)
    except BadRecord as error:
        done.bad.append((line, error.reason))
        return None
    return record


def _check(kind: str, record: Any) -> None:
    """Raises BadRecord for numbers that no column can hold, which would stop other lines too, and
    for files that lie outside of any home."""
    if kind in _PLACES and (place := getattr(record, _PLACES[kind])) is not None:
        parts = PurePosixPath(place).parts
        if ".." in parts or parts[:1] == ("/",):
            raise BadRecord(f"{kind} {identity(record)} lies outside of the home: {place!r}")
    if not isinstance(record, Trace):
        numbers = [one for one in entries.TABLES[kind].row(record).values() if type(one) is int]
    else:
        numbers = [record.attempt or 0, record.expires or 0]
        for span in record.spans:
            numbers += (span.start or 0, span.end or 0, span.version)
            if span.call is not None:
                used = span.call.usage
                numbers += (used.input_tokens or 0, used.cached_input_tokens or 0)
                numbers += (used.output_tokens or 0, used.reasoning_tokens or 0)
                for choice in span.call.choices:
                    if choice.tokens is not None:
                        numbers += choice.tokens.prompt_ids + choice.tokens.completion_ids
    try:
        array("q", numbers)
    except OverflowError as error:
        raise BadRecord(f"{kind} {identity(record)} has a whole number beyond 64 bits") from error


def absorb_traces(
    database: "DuckDBPyConnection", sequence: int, parts: list[Trace], done: Absorbed
) -> None:
    """Merges parts of traces into what is stored of them."""
    fresh = unknown(database, "traces", "VARCHAR", {one.id for one in parts})
    known = sorted({one.id for one in parts} - fresh)
    before = {
        one.id: (merge(None, one), copied, raws) for one, copied, raws in load(database, known)
    }
    merged = {key: state[0] for key, state in before.items()}
    raws: dict[str, set[str]] = {}
    for part in parts:
        old = merged.get(part.id)
        merged[part.id] = new = merge(old, part)
        done.counts["duplicates"] += new is old
        if part.raw is not None:
            raws.setdefault(part.id, set()).add(part.raw)
    rows = columns.Rows(sequence)
    replaced: list[tuple[str, str]] = []
    for key, trace in merged.items():
        was = before.get(key)
        if was is None or trace is not was[0] or raws.get(key, set()) - set(was[2]):
            replaced += add_changed(rows, trace, raws.get(key, set()), was, done.counts)
    retire(database, sequence, [row[0] for row in rows.traces if row[0] in before], replaced)
    _insert_rows(database, rows)


def _insert_rows(database: "DuckDBPyConnection", rows: columns.Rows) -> None:
    insert(database, "traces", columns.TRACES, rows.traces)
    insert(database, "spans", columns.SPANS, rows.spans)
    insert(database, "tokens", columns.TOKENS, rows.tokens)
    for table, shape, found in (
        ("messages", columns.MESSAGES, rows.messages),
        ("toolsets", columns.TOOLSETS, rows.toolsets),
    ):
        new = _unknown_bodies(database, table, found)
        insert(database, table, shape, [found[key] for key in found if key in new])


def _unknown_bodies(database: "DuckDBPyConnection", table: str, ids: dict[str, Any]) -> set[str]:
    if table == "messages":
        return set(ids) - {one for one, _ in bodies(database, table, set(ids), body="NULL")}
    return unknown(database, table, "VARCHAR", ids)


def _absorb_entries(
    database: "DuckDBPyConnection", sequence: int, kind: str, records: list[Any], done: Absorbed
) -> None:
    table = entries.TABLES[kind]
    keys = {identity(one) for one in records}
    there = {
        row["id"]: entries.record_of(kind, row) for row in fetch(database, table.name, sorted(keys))
    }
    changed: dict[str, Any] = {}
    for new in records:
        key = identity(new)
        old = changed.get(key, there.get(key))
        made = new if old is None else entries.stands(old, new)
        done.counts["duplicates"] += made is old
        done.counts[kind] += old is None
        if made is not old:
            changed[key] = made
    remove(database, table.name, [key for key in changed if key in there])
    insert(
        database, table.name, entries.all_columns(table),
        [entries.row_of(table, one, sequence) for one in changed.values()],
    )  # fmt: skip
