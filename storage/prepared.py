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
from storage.assembled import assemble
from storage.calls import Calls
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
PLAIN_CALL = ("renderable", ("no token ids",))
"""What `storage.fidelity` says of a call that is whole, without its tokens."""
_Packed = dict[str, tuple[memoryview, memoryview]]
_UNFIT = (TypeError, ValueError, OverflowError, RecursionError)
Tables = dict[str, "pa.Table"]


class Unprepared(Exception):
    """Some record does not fit the columns: as a line of its own, it alone is refused."""


class Preparing:
    """Makes a segment of records that are given one by one: each is made rows while it is at hand,
    for two thirds of what it would take later."""

    def __init__(self) -> None:
        self.rows = columns.Rows(0)
        self.calls = Calls(PLAIN_CALL)
        """Of the commonest traces, which are made rows together at last."""
        self._merged: dict[str, Trace] = {}
        self._raws: dict[str, set[str | None]] = {}
        """Of traces that came in several parts."""
        self._said: dict[str, tuple[Any, ...]] = {}
        self._fault: Exception | None = None

    def add(self, record: Trace | Feedback) -> None:
        try:
            if isinstance(record, Trace):
                self._trace(finite(record))
            else:
                row = _said(record)
                self._said[row[0]] = row
        except _UNFIT as error:
            self._fault = error

    def holds(self, trace_id: str) -> bool:
        return trace_id in self._merged or trace_id in self.calls

    def _trace(self, part: Trace) -> None:
        if part.id in self.calls:
            self._trace(finite(self.calls.take(part.id)))
        old = self._merged.get(part.id)
        self._merged[part.id] = trace = merge(old, part)
        if old is None:
            self._add(trace, {trace.raw})
        else:
            self._raws.setdefault(part.id, {old.raw}).add(part.raw)

    def _add(self, trace: Trace, raws: set[str | None]) -> None:
        add_changed(self.rows, trace, [one for one in raws if one is not None], None, Counter())

    def packed(self) -> bytes:
        """The plain bytes of the segment.

        Raises:
            Unprepared: see there.
        """
        try:
            if self._fault is not None:
                raise self._fault
            tables = self._tables()
        except _UNFIT as error:
            raise Unprepared(str(error)) from error
        return HEADER + msgspec.msgpack.encode({name: _packed(one) for name, one in tables.items()})

    def _tables(self) -> Tables:
        from storage.rows import table_of

        rows, parted = self.rows, self._raws
        if parted:
            for held in (rows.traces, rows.spans, rows.tokens):
                held[:] = [row for row in held if row[0] not in parted]
            for key, raws in parted.items():
                self._add(self._merged[key], raws)
        made = {
            "traces": rows.traces,
            "spans": rows.spans,
            "tokens": rows.tokens,
            "messages": list(rows.messages.values()),
            "toolsets": list(rows.toolsets.values()),
            "feedback": list(self._said.values()),
        }
        tables = {name: table_of(SHAPES[name], found) for name, found in made.items() if found}
        return _joined(self.calls.tables(rows.messages), tables)


def _joined(some: Tables, others: Tables) -> Tables:
    import pyarrow as pa

    return {
        name: pa.concat_tables(found).combine_chunks() if len(found) > 1 else found[0]
        for name in SHAPES
        if (found := [tables[name] for tables in (some, others) if name in tables])
    }


def prepare(records: Iterable[Trace | Feedback]) -> bytes:
    """The plain bytes of a segment.

    Raises:
        Unprepared: see there.
    """
    preparing = Preparing()
    for record in records:
        preparing.add(record)
    return preparing.packed()


def _said(one: Feedback) -> tuple[Any, ...]:
    """As `entries.row_of`, encoded once."""
    body = canonical(one)
    return (digest_bytes(b"[" + body + b"]"), 0, *_FEEDBACK.row(one).values(), body)


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
    made = assemble(
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
