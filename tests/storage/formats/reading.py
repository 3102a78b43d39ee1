"""Whole files read as the importer reads them, without a store: for tests that compare formats."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flywheel.ids import digest_bytes
from flywheel.records import Choice, Feedback, Message, ModelCall, Span, Trace
from storage.chunk import read_chunk
from storage.envelope import decode, encode
from storage.files_in import blocks
from storage.merge import judged, merge
from storage.rows_in import chunks, rows
from storage.whole import joined


@dataclass
class Held:
    """What some files hold."""

    traces: dict[str, Trace] = field(default_factory=dict)
    feedback: list[Feedback] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    unmapped: Counter[str] = field(default_factory=Counter)
    rejects: list[tuple[str | None, str]] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)

    @property
    def spans(self) -> list[Span]:
        return [span for trace in self.traces.values() for span in trace.spans]

    @property
    def calls(self) -> list[ModelCall]:
        return [span.call for span in self.spans if span.call]

    def fidelity(self) -> Counter[str]:
        return Counter(str(judged(trace).fidelity) for trace in self.traces.values())


def held(*paths: Path) -> Held:
    found = Held()

    def keep(data: bytes) -> str:
        found.kept[digest_bytes(data)] = data
        return digest_bytes(data)

    for path in paths:
        for chunk in chunks(joined(rows(blocks(path), 1 << 26), "auto", 1 << 26)):
            read = read_chunk(chunk, "0" * 32, "p", "auto", keep)
            found.formats.update(read.formats)
            found.unmapped.update(read.unmapped)
            found.rejects += [(error.field, error.reason) for _, error, _ in read.rejects]
            for record in read.records:
                stored: Any = decode(encode(record))[1]
                if isinstance(stored, Trace):
                    found.traces[stored.id] = merge(found.traces.get(stored.id), stored)
                else:
                    found.feedback.append(stored)
    return found


def told(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    """What every format must agree on: who speaks, the text, the calls."""
    role = "system" if message.role == "developer" else message.role
    return role, message.text, [(one.name, one.arguments) for one in message.tool_calls]


def said(choices: tuple[Choice, ...]) -> list[Any]:
    return [(told(choice.message), choice.finish_reason) for choice in choices]


def of_row(row: Any) -> Held:
    """What one row, or a list of rows that are one trace, holds."""
    import msgspec

    from storage.rows_in import Row

    found = Held()

    def keep(data: bytes) -> str:
        found.kept[digest_bytes(data)] = data
        return digest_bytes(data)

    read = read_chunk([Row(1, msgspec.json.encode(row))], "0" * 32, "p", "auto", keep)
    for record in read.records:
        stored: Any = decode(encode(record))[1]
        if isinstance(stored, Trace):
            found.traces[stored.id] = merge(found.traces.get(stored.id), stored)
        else:
            found.feedback.append(stored)
    found.formats, found.unmapped = read.formats, read.unmapped
    found.rejects += [(error.field, error.reason) for _, error, _ in read.rejects]
    return found
