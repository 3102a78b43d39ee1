"""The rows of one file, whether JSON lines, one document or an array, and chunks of them.

What enters are blocks of bytes; what leaves are rows as bytes with their number, and then chunks.
A chunk's end is decided by the bytes of the row that ends it, so that a file with one row more has
all but one or two chunks in common with the file before. Invariant: every byte that is not blank
belongs to exactly one row, good or not.
"""

import itertools
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from flywheel.errors import BadRecord

from .json_in import BOM, decode, elements

KEPT_OF_LONG = 64 << 10
"""Bytes kept of a row that is over the limit."""
_LEAST_ROWS, _MOST_ROWS, _MOST_BYTES = 512, 4096, 8 << 20
_CUT = 1023
_HEAD = 4 << 20
"""Bytes that are looked at to tell lines from a document, from the first one that is not blank."""
_BLANK = b" \t\r\n\x00"


class Row(msgspec.Struct, frozen=True, gc=False):
    number: int
    """Of the line in JSON lines, of the element in a document; from 1."""
    data: bytes
    problem: str | None = None
    """Why it cannot be a row; `data` is then what was kept of it."""


def rows(blocks: Iterator[bytes], max_line: int) -> Iterator[Row]:
    """The rows of a file's bytes. A fault of the file is the last row's problem."""
    head, blank, first = b"", b"", 1
    problem, blocks = None, _without_mark(blocks)
    try:
        for block in blocks:
            if not head:
                begun = block.lstrip(_BLANK)
                first += block.count(b"\n", 0, len(block) - len(begun))
                blank, block = blank or block[:KEPT_OF_LONG], begun
            head += block
            if (len(head) >= 1 << 16 and b"\n" in head) or len(head) >= _HEAD:
                break
    except BadRecord as error:
        problem, blocks = error.reason, iter(())
    if not head:
        yield Row(1, blank, problem or "is empty: there is nothing to read")
        return
    whole = itertools.chain([head], _safe(blocks, problem))
    if _is_lines(head):
        yield from _lines(whole, max_line, first)
    elif head[:1] in (b"{", b"["):
        yield from _document(whole, max_line)
    else:
        yield Row(1, head[:KEPT_OF_LONG], problem or "is not JSON: no line of it can be read")


def chunks(found: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in groups whose ends depend on the rows alone."""
    batch: list[Row] = []
    size = 0
    for row in found:
        batch.append(row)
        size += len(row.data)
        full = size >= _MOST_BYTES or len(batch) >= _MOST_ROWS
        if full or (len(batch) >= _LEAST_ROWS and zlib.crc32(row.data) & _CUT == 0):
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    start = b""
    for block in blocks:
        start += block
        if len(start) >= len(BOM):
            break
    yield start.removeprefix(BOM)
    yield from blocks


class _Fault(Exception):
    """The file cannot be read further; its text is the reason."""


def _safe(blocks: Iterator[bytes], problem: str | None) -> Iterator[bytes]:
    try:
        yield from blocks
    except BadRecord as error:
        problem = error.reason
    if problem is not None:
        raise _Fault(problem)


def _is_lines(head: bytes) -> bool:
    """Whether some line by itself is a row; an array over several lines is a document."""
    start = head.lstrip(_BLANK)
    lines = start.split(b"\n", 64)
    if len(lines) == 1:
        return start[:1] == b"{"
    first = lines[0].strip(_BLANK)
    if start[:1] == b"[":
        return any(line.strip(_BLANK) for line in lines[1:]) and _parses(first)
    return any(line[:1] == b"{" and _parses(line) for line in lines[:64])


def _parses(line: bytes) -> bool:
    try:
        decode(line)
    except BadRecord:
        return False
    return True


def _lines(blocks: Iterator[bytes], max_line: int, first: int) -> Iterator[Row]:
    """Lines, without holding more of one than `max_line` bytes. What is blank at a line's start is
    no part of it: a machine that lost its power leaves any number of NULs there."""
    number, held, kept, length = first, list[bytes](), 0, 0
    try:
        for block in blocks:
            pieces = block.split(b"\n")
            for at, piece in enumerate(pieces):
                if not length and at < len(pieces) - 1 and _is_row(piece, max_line):
                    yield Row(number, piece)
                    number, held = number + 1, []
                    continue
                if not length:
                    begun = piece.lstrip(_BLANK)
                    held = [] if begun else held or [piece[:KEPT_OF_LONG]]
                    piece = begun
                length += len(piece)
                if kept <= max_line:
                    held.append(piece)
                    kept += len(piece)
                    if kept > max_line:
                        held = [b"".join(held)[:KEPT_OF_LONG]]
                if at == len(pieces) - 1:
                    break
                row = _line(number, held, length, max_line)
                if row is not None:
                    yield row
                number, held, kept, length = number + 1, [], 0, 0
    except _Fault as fault:
        data = b"".join(held)[:max_line]
        yield Row(number, data, f"{fault} (the lines before this one were read)")
        return
    row = _line(number, held, length, max_line)
    if row is not None:
        yield row


def _is_row(line: bytes, max_line: int) -> bool:
    """Whether nothing is to be taken off a line: the commonest case."""
    return line[:1] == b"{" and line[-1:] == b"}" and len(line) <= max_line


def _line(number: int, held: list[bytes], length: int, max_line: int) -> Row | None:
    data = held[0] if len(held) == 1 else b"".join(held)
    if length > max_line:
        return Row(number, data[:KEPT_OF_LONG], _too_long(length, max_line))
    data = data.strip() if data[-1:] == b"\r" or data[:1] in (b" ", b"\t") else data
    return Row(number, data) if data and not data.isspace() else None


def _document(blocks: Iterator[bytes], max_line: int) -> Iterator[Row]:
    held, size, read, fault = list[bytes](), 0, 0, None
    try:
        for block in blocks:
            begun = block.rstrip(_BLANK)  # what is blank at the document's end is no part of it
            size = read + len(begun) if begun else size
            read += len(block)
            if size <= max_line:
                held.append(block if read <= max_line else begun)
    except _Fault as error:
        fault = str(error)
    data = b"".join(held).strip(_BLANK)
    if size > max_line:
        reason = _too_long(size, max_line) + "; it is one document: any number of lines is read too"
        yield Row(1, data[:KEPT_OF_LONG], reason)
        return
    if data[:1] == b"{" and _parses(data):
        yield Row(1, data)
        return
    number = 0
    try:
        for element in elements(data):
            number += 1
            yield Row(number, element)
        if number == 0:
            yield Row(1, data[:KEPT_OF_LONG], "is an empty array: there is nothing to read")
    except BadRecord as error:
        fault = fault or error.reason
    if fault:
        yield Row(number + 1, data[:KEPT_OF_LONG] if number == 0 else b"", fault)


def _too_long(length: int, max_line: int) -> str:
    return (
        f"has {length:,} bytes, over the limit of {max_line:,}: its first {KEPT_OF_LONG:,} are "
        "kept, the rest stays in the file; raise the limit with --max-line"
    )
