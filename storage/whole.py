"""Files that are one trace in many rows: sessions of agents, event lists, bare lists of messages.

Rows of a file enter; the same rows leave, or one row that is the JSON array of them all, where a
format says that rows such as the first ones belong together. Invariant: rows that are no JSON stay
rows of their own, so that each is refused alone.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from flywheel.errors import BadRecord
from storage.formats import FORMATS
from storage.json_in import decode
from storage.rows_in import KEPT_OF_LONG, Row

_LOOKED_AT, _BYTES_LOOKED_AT = 32, 1 << 20
"""Rows, and their bytes, by which a file is known."""


def joined(found: Iterator[Row], format: str, max_size: int) -> Iterator[Row]:
    """
    Args:
        format: a key of FORMATS, or "auto".
        max_size: bytes that the rows of one trace may have together.
    """
    head: list[Row] = []
    size = 0
    for row in found:
        head.append(row)
        size += len(row.data)
        if len(head) == _LOOKED_AT or size >= _BYTES_LOOKED_AT:
            break
    found = itertools.chain(head, found)
    values = [value for row in head if row.problem is None for value in _value(row)]
    if whole(values, format) is None:
        yield from found
    else:
        yield from _one(found, max_size)


def whole(value: object, format: str = "auto") -> str | None:
    """The format by which a list of rows is one trace, or a few; None = each row is its own."""
    if not isinstance(value, list) or not value:
        return None
    if isinstance(value[0], dict) and "request" in value[0]:
        return None  # a logged call tells all of itself
    if format != "auto":
        return format if FORMATS[format].whole and FORMATS[format].recognise(value) else None
    for name, one in FORMATS.items():
        if one.whole and one.recognise(value):
            return name
    return None


def _value(row: Row) -> list[Any]:
    try:
        return [decode(row.data)]
    except BadRecord:
        return []


def _one(found: Iterator[Row], max_size: int) -> Iterator[Row]:
    held: list[bytes] = []
    first, size = 1, 0
    for row in found:
        if row.problem is not None or not _value(row):
            yield row
            continue
        first = first if held else row.number
        size += len(row.data) + 2
        if size <= max_size:
            held.append(row.data)
    if size > max_size:
        reason = (
            f"its rows are one trace of {size:,} bytes, over the limit of {max_size:,}: a part is "
            "kept, the rest stays in the file; raise the limit with --max-line"
        )
        yield Row(first, b"\n".join(held)[:KEPT_OF_LONG], reason)
    elif held:
        yield Row(first, b"[" + b",\n".join(held) + b"]")
