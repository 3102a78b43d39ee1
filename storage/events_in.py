"""A captured stream of server-sent events, as text, as JSON lines: one event's data a line.

Enter blocks of bytes; leave lines, without comments, event names and [DONE]. Invariant: data that
is no JSON stays a line of its own, so that it is refused with its place.
"""

import re
from collections.abc import Iterator

_starts = re.compile(rb"\s*(?:event:|id:|retry:|:|data:\s*(?:\{|\[DONE\]))")
_breaks = re.compile(rb"\r\n|\n|\r")


def is_events(head: bytes) -> bool:
    """Whether a file that begins with `head` holds such a stream."""
    return _starts.match(head) is not None and b"data:" in head


def json_lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    held = b""
    for block in blocks:
        held += block
        end = max(held.rfind(b"\n"), held.rfind(b"\r", 0, len(held) - 1)) + 1
        yield _lines(held[:end])
        held = held[end:]
    yield _lines(held)


def _lines(text: bytes) -> bytes:
    found = []
    for line in _breaks.split(text):
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data and data != b"[DONE]":
                found.append(data + b"\n")
    return b"".join(found)
