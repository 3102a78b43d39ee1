"""Rows of JSON: one a line, or one array. A line is read no further than its bound."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flywheel.errors import BadRecord

MAX_LINE = 16 << 20
"""Bytes of a row."""
MAX_ARRAY = 256 << 20
"""Bytes of a file that is one array: it is read whole."""


def lines(path: Path) -> Iterator[Any]:
    """One value a line, a BadRecord where there is none; a blank line is an empty object."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE)
                yield BadRecord(f"is longer than {MAX_LINE:,} bytes: split it or leave it out")
                continue
            yield _decoded(line.removeprefix(b"\xef\xbb\xbf").strip() or b"{}")


def lines_or_array(path: Path) -> Iterator[Any]:
    """What `.json` holds: one array of rows, one row, or, as some benchmarks do, lines."""
    with path.open("rb") as file:
        head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head.startswith(b"["):
        yield from lines(path)
        return
    if path.stat().st_size > MAX_ARRAY:
        yield BadRecord(f"is an array of over {MAX_ARRAY:,} bytes: write one row a line (.jsonl)")
        return
    whole = _decoded(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    yield from whole if isinstance(whole, list) else (whole,)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BadRecord(f"is no JSON: {error}; mend the row or leave it out")
