"""One chunk of rows read by the formats: records out, and what could not be understood.

Rows enter as bytes; what leaves is ready for the inbox. The format that read the row before is
asked first, so that a file of one format is recognised once. Invariant: a fault in a row, also one
that no format foresaw, rejects that row alone.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Feedback, Trace
from storage.belonging import NOBODY, Belonging, held_keys, owned
from storage.formats import FORMATS
from storage.formats.parsed import NOTHING_ELSE, Context, Parsed
from storage.json_in import decode
from storage.prepared import Preparing
from storage.rows_in import Row
from storage.whole import whole


@dataclass
class ChunkRead:
    records: list[Trace | Feedback] = field(default_factory=list)
    """[] where `ready` has them."""
    traces: int = 0
    """Parts of traces, copies included."""
    spans: int = 0
    feedback: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    unmapped: Counter[str] = field(default_factory=Counter)
    rejects: list[tuple[int, BadRecord, bytes | str]] = field(default_factory=list)
    """Lines from the chunk's first row on, why, and the bytes; of a part of a row, the row's key in
    the raw store."""
    told: Belonging = NOBODY
    """Whose the traces are, where they do not say it themselves."""
    ready: Preparing | None = None
    """Makes rows of the records as they come; None = they stay records."""
    refused: int = 0
    """Records of what was erased, which are not among the others."""

    @property
    def some(self) -> bool:
        return (self.ready is not None and self.traces + self.feedback > 0) or bool(self.records)


def read_chunk(
    chunk: list[Row],
    raw: str,
    project: str,
    format: str,
    keep: Callable[[bytes], str],
    told: Belonging = NOBODY,
    ready: Preparing | None = None,
) -> ChunkRead:
    """Reads every row of `chunk`, whose bytes stand in the raw store under `raw`, joined by \\n."""
    read = ChunkRead(told=told, ready=ready)
    first = chunk[0].number
    seen: dict[bytes, tuple[int, str | None]] = {}
    name = None if format == "auto" else format
    offset = 0
    for row in chunk:
        data, size = row.data, len(row.data)
        place = f"{raw}#{offset}+{size}"
        offset += size + 1
        if row.problem is not None:
            read.rejects.append((row.number - first, BadRecord(row.problem), data))
            continue
        if data in seen:  # the same row again: its records are there
            spans, of = seen[data]
            read.spans += spans
            read.formats[of or ""] += 1
            continue
        context = Context(project, keep, place, size)
        spans = read.spans
        try:
            name = _read_row(data, context, name, format != "auto", read, row.number - first)
            seen[data] = (read.spans - spans, name)
        except BadRecord as error:
            read.rejects.append((row.number - first, error, data))
    return read


def _read_row(
    data: bytes, context: Context, name: str | None, fixed: bool, read: ChunkRead, line: int
) -> str | None:
    """Reads one row and adds what it gave; returns the format that read it."""
    value = None
    if name is None and isinstance(value := decode(data), dict):
        name = recognised(value)
    if name is not None and _at_once(data, context, name, read, line):
        return name
    value = decode(data) if value is None else value
    if isinstance(value, list) and _are_rows(value) and whole(value) is None:
        for item in value:  # one line that holds an array of rows
            name = _add(item, context, name, fixed, read, line)
        return name
    return _add(value, context, name, fixed, read, line)


def _at_once(data: bytes, context: Context, name: str, read: ChunkRead, line: int) -> bool:
    """Whether a quicker reader of the format knew the row, from its bytes."""
    format = FORMATS[name]
    if format.direct is not None and read.ready is not None:
        parsed = format.direct(data, context, read.told, read.ready)
        if parsed is not None:
            read.traces, read.spans = read.traces + 1, read.spans + 1
            _count(parsed, name, context, read, line)
            return True
    if format.quick is not None and (parsed := format.quick(data, context)) is not None:
        _count(parsed, name, context, read, line)
        return True
    return False


def _are_rows(values: list[Any]) -> bool:
    return bool(values) and isinstance(values[0], dict) and "role" not in values[0]


def _add(
    value: Any,
    context: Context,
    name: str | None,
    fixed: bool,
    read: ChunkRead,
    line: int,
) -> str | None:
    if not fixed and (name is None or not FORMATS[name].recognise(value)):
        name = recognised(value)
    assert name is not None
    _count(_parsed(value, context, name), name, context, read, line)
    return name


def _count(parsed: Parsed, name: str, context: Context, read: ChunkRead, line: int) -> None:
    read.formats[name] += 1
    if parsed is NOTHING_ELSE:
        return
    traces = [owned(trace, read.told) for trace in parsed.traces]
    for trace in traces:
        _give(read, trace)
    for said in parsed.feedback:
        _give(read, said)
    read.traces += len(traces)
    read.spans += sum([len(trace.spans) for trace in traces])
    read.feedback += len(parsed.feedback)
    if parsed.unmapped:
        _count_unmapped(parsed.unmapped, traces, read.unmapped)
    if parsed.rejects:
        read.rejects.extend((line, error, context.raw or "") for error in parsed.rejects)


def _count_unmapped(found: dict[str, int], traces: list[Trace], unmapped: Counter[str]) -> None:
    """Adds what no field has; what a field of its trace has after all is none of these."""
    held = Counter([path for trace in traces for path in held_keys(trace, found)])
    unmapped.update(found)
    unmapped.subtract(held & Counter(found))
    for key in held:
        if not unmapped[key]:
            del unmapped[key]


def _give(read: ChunkRead, record: Trace | Feedback) -> None:
    if read.ready is None:
        read.records.append(record)
    else:
        read.ready.add(record)


def recognised(value: object) -> str:
    """The format of a row.

    Raises:
        BadRecord: it is of none; says what was seen and what is read.
    """
    for name, format in FORMATS.items():
        if format.recognise(value):
            return name
    raise BadRecord(f"is of no known format ({_seen(value)}): {', '.join(FORMATS)} are read")


def _parsed(value: Any, context: Context, name: str) -> Parsed:
    if not isinstance(value, dict) and not (FORMATS[name].whole and isinstance(value, list)):
        raise BadRecord(f"is not an object, as rows of {name} are ({_seen(value)})")
    try:
        return FORMATS[name].read(value, context)
    except (
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:  # a shape that no format foresaw; the row is kept with what was said
        said = f"{type(error).__name__}: {error}"
        raise BadRecord(f"has a shape that {name} cannot read ({said})") from error


def _seen(value: object) -> str:
    if isinstance(value, dict):
        keys = ", ".join(str(key)[:40] for key in list(value)[:6])
        return f"an object with {keys or 'nothing in it'}"
    return f"a {type(value).__name__}" if value is not None else "null"
