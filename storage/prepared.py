"""What an importer understood, as the rows that it becomes: traces, spans, tokens, messages, tools,
feedback.

Records enter; leave Arrow tables in one segment, so that the committer inserts unknown traces as
they are and reads none of them as objects. `parts` gives the equal records of such rows, for what
must be merged. Invariant: rows say all that their records say, of parts of one trace together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import CorruptFile
from flywheel.ids import canonical, digest_bytes
from flywheel.records import Feedback, Trace
from storage import columns, entries
from storage.changes import add_changed
from storage.envelope import finite
from storage.merge import merge

if TYPE_CHECKING:
    import pyarrow as pa

HEADER = b"flywheel-rows 1\n"
_FEEDBACK = entries.TABLES["feedback"]
SHAPES = {
    "traces": columns.TRACES,
    "spans": columns.SPANS,
    "tokens": columns.TOKENS,
    "messages": columns.MESSAGES,
    "toolsets": columns.TOOLSETS,
    "feedback": entries.all_columns(_FEEDBACK),
}
_Packed = dict[str, tuple[memoryview, memoryview]]
Tables = dict[str, "pa.Table"]


class Unprepared(Exception):
    """Some record does not fit the columns: as a line of its own, it alone is refused."""


def prepare(records: Iterable[Trace | Feedback]) -> bytes:
    """The plain bytes of a segment.

    Raises:
        Unprepared: see there.
    """
    from storage.rows import table_of

    try:
        rows, said = _rows(records)
        held = {
            "traces": rows.traces,
            "spans": rows.spans,
            "tokens": rows.tokens,
            "messages": list(rows.messages.values()),
            "toolsets": list(rows.toolsets.values()),
            "feedback": said,
        }
        tables = {name: table_of(SHAPES[name], found) for name, found in held.items() if found}
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unprepared(str(error)) from error
    return HEADER + msgspec.msgpack.encode({name: _packed(one) for name, one in tables.items()})


def _rows(records: Iterable[Trace | Feedback]) -> tuple[columns.Rows, list[tuple[Any, ...]]]:
    merged: dict[str, Trace] = {}
    raws: dict[str, set[str]] = {}
    said: dict[str, tuple[Any, ...]] = {}
    for one in records:
        if isinstance(one, Feedback):
            row = _said(one)
            said[row[0]] = row
            continue
        merged[one.id] = merge(merged.get(one.id), finite(one))
        if one.raw is not None:
            raws.setdefault(one.id, set()).add(one.raw)
    rows = columns.Rows(0)
    for key, trace in merged.items():
        add_changed(rows, trace, raws.get(key, ()), None, Counter())
    return rows, list(said.values())


def _said(one: Feedback) -> tuple[Any, ...]:
    """As `entries.row_of`, encoded once."""
    body = canonical(one)
    own = {"id": digest_bytes(b"[" + body + b"]"), "since": 0, "body": body, **_FEEDBACK.row(one)}
    return tuple([own[name] for name in SHAPES["feedback"]])


def _packed(table: "pa.Table") -> tuple[memoryview, memoryview]:
    """Its schema and its rows."""
    (batch,) = table.to_batches()
    return memoryview(table.schema.serialize()), memoryview(batch.serialize())


def tables(plain: bytes) -> Tables:
    """The tables of a segment that `prepare` made; those without rows are not there.

    Raises:
        CorruptFile: it is none.
    """
    import pyarrow as pa

    try:
        held = msgspec.msgpack.decode(memoryview(plain)[len(HEADER) :], type=_Packed)
        return {name: _table(*held[name]) for name in SHAPES if name in held}
    except (msgspec.MsgspecError, pa.ArrowException) as error:
        raise CorruptFile(f"its rows cannot be read: {error}") from error


def _table(shape: memoryview, rows: memoryview) -> "pa.Table":
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(shape))
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(rows), schema)])


def count(found: Tables) -> int:
    """Records that the rows are of."""
    return sum(found[name].num_rows for name in ("traces", "feedback") if name in found)


def records(found: Tables) -> Iterator[Trace | Feedback]:
    """The records of rows."""
    rows = {name: table.to_pylist() for name, table in found.items()}
    yield from parts(rows)
    for row in rows.get("feedback", ()):
        yield entries.record_of("feedback", row)


def parts(rows: dict[str, list[dict[str, Any]]]) -> Iterator[Trace]:
    """The traces of rows; one that came from several places, once more for each of these."""
    traces = rows.get("traces", [])
    made = columns.assemble(
        traces,
        rows.get("spans", ()),
        rows.get("tokens", ()),
        _bodies(rows.get("messages", ())),
        _bodies(rows.get("toolsets", ())),
    )
    for row, (trace, _) in zip(traces, made, strict=True):
        plain = msgspec.structs.replace(trace, fidelity=None, fidelity_reasons=())
        yield plain
        for raw in row["raws"]:
            if raw != trace.raw:
                yield msgspec.structs.replace(plain, raw=raw, spans=(), attributes={})


def _bodies(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["id"], row["body"]) for row in rows]
