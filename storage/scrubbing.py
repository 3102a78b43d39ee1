"""What is found in a file goes from it, and the rest of the file stays as it was.

Enter bytes or values and what is looked for; leave them without it. Lines of records, rows and
elements of lists that hold it go whole; elsewhere the text itself is replaced. Invariant: what
holds nothing of it is not changed.
"""

from typing import Any

import msgspec

from storage.needles import Search

ERASED = "[erased]"


def without_lines(data: bytes, search: Search) -> bytes:
    """JSON lines without those that hold something."""
    lines = data.split(b"\n")
    gone = {at for at, _ in search.hits(lines)}
    return b"\n".join(line for at, line in enumerate(lines) if at not in gone)


def blanked(data: bytes, search: Search) -> bytes:
    """The same, each such line as so many spaces: of a file that somebody else appends to."""
    lines = data.split(b"\n")
    for at, _ in search.hits(lines):
        lines[at] = b" " * len(lines[at])
    return b"\n".join(lines)


def masked(data: bytes, search: Search, *, within: tuple[bytes, bytes] = (b"\n", b"\n")) -> bytes:
    """Text in which each piece that holds something is replaced by a mark.

    Args:
        within: what a piece begins after and ends before: a line break, or a tag.
    """
    made = bytearray()
    at = 0
    for start, length in search.places(data):
        if start < at:
            continue
        begin = max(at, data.rfind(within[0], at, start) + 1)
        end = data.find(within[1], start + length)
        made += data[at:begin] + ERASED.encode()
        at = len(data) if end < 0 else end
    return bytes(made + data[at:])


def filled(data: bytes, search: Search) -> bytes:
    """What is found, and no more, each of its bytes an x: nothing moves."""
    made = bytearray(data)
    for start, length in search.places(data):
        made[start : start + length] = b"x" * length
    return bytes(made)


def cleaned_text(data: bytes, search: Search) -> bytes:
    """A cell of a table: cleaned as a document where it is one, else replaced whole."""
    try:
        return msgspec.json.encode(cleaned(msgspec.json.decode(data), search))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ERASED.encode()


def cleaned(value: Any, search: Search) -> Any:
    """A decoded document: elements of lists that hold something are left out, other texts replaced.
    `value` itself where there is nothing."""
    leaves: dict[Any, None] = {}
    _leaves(value, leaves)
    known = list(leaves)
    windows = [_written(one) for one in known]
    bad = {known[at] for at, _ in search.hits(windows)}
    return _walked(value, bad)[0] if bad else value


def _leaves(value: Any, found: dict[Any, None]) -> None:
    if isinstance(value, str | bytes):
        found[value] = None
    elif isinstance(value, dict):
        for key, one in value.items():
            _leaves(key, found)
            _leaves(one, found)
    elif _numbers(value):
        found[tuple(value)] = None
    elif isinstance(value, list | tuple):
        for one in value:
            _leaves(one, found)


def _numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and type(value[0]) is int


def _written(leaf: Any) -> bytes:
    if isinstance(leaf, bytes):
        return leaf
    if isinstance(leaf, str):
        return leaf.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(leaf)


def _walked(value: Any, bad: set[Any]) -> tuple[Any, bool]:
    """The value, and whether it held something that no list inside it took away."""
    if isinstance(value, str | bytes):
        return (ERASED, True) if value in bad else (value, False)
    if isinstance(value, dict):
        made, held = {}, False
        for key, one in value.items():
            new, hit = _walked(one, bad)
            held |= hit or key in bad
            if key not in bad:
                made[key] = new
        return made, held
    if _numbers(value):
        return ([], True) if tuple(value) in bad else (value, False)
    if isinstance(value, list | tuple):
        walked = [_walked(one, bad) for one in value]
        return [one for one, hit in walked if not hit], False
    return value, False
