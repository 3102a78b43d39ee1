"""JSON as people and programs really write it: fast where it is sound, mended where it can be.

Mended are NaN and Infinity (kept as text), lone surrogates, NULs and bytes that are no UTF-8
(U+FFFD), control characters and a byte order mark. Invariant: what leaves can be stored as JSON,
and is nested at most MOST_DEPTH deep; it has no more than MOST_VALUES objects, lists and keys.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from flywheel.errors import BadRecord

MOST_DEPTH = 200
MOST_VALUES = 8_000_000
"""Objects, lists and keys of one value: each takes up to 150 bytes of memory, for 3 in a file."""
BOM = b"\xef\xbb\xbf"

_decoder = msgspec.json.Decoder()
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_unstorable = re.compile("[\x00\ud800-\udfff]")
_blank = re.compile(r"[\s,\x00]*")
_counted = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([{\[:])', re.DOTALL)


def decode(data: bytes) -> Any:
    """One JSON value.

    Raises:
        BadRecord: it is none, even read with patience, or too much; says why and where.
    """
    _check_values(data)
    try:
        value = _mended(data) if b"\\u0000" in data else _decoder.decode(data)
    except RecursionError:
        raise BadRecord(f"is nested deeper than {MOST_DEPTH} levels") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        value = _mended(data)
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH:
        _check_depth(value)
    return value


def elements(data: bytes) -> Iterator[bytes]:
    """The elements of an array (or values that follow each other), each as its own bytes.

    Raises:
        BadRecord: it breaks off; the elements before have been given.
    """
    if data.count(b",") <= MOST_VALUES:  # else they are not held all at once
        try:
            for raw in _list_decoder.decode(data):
                yield bytes(raw)
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            pass
    text = _text(data)
    at = _inside(text, 0)
    scanner = json.JSONDecoder(strict=False)
    while at < len(text):
        if text[at] == "]":
            at = _inside(text, at + 1)
            continue
        try:
            _, end = scanner.raw_decode(text, at)
        except RecursionError:
            raise BadRecord(f"is nested deeper than {MOST_DEPTH} levels") from None
        except ValueError as error:
            raise BadRecord(_reason(error, text)) from None
        yield text[at:end].encode("utf-8", "replace")
        at = _skip(text, end)


def _inside(text: str, at: int) -> int:
    """Past blanks, and into an array that begins there."""
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at : at + 1] == "[" else at


def _skip(text: str, at: int) -> int:
    match = _blank.match(text, at)
    return match.end() if match else at


def _text(data: bytes) -> str:
    return data.removeprefix(BOM).decode("utf-8", "replace")


def _mended(data: bytes) -> Any:
    text = _text(data).strip("\x00 \t\r\n")
    if not text:
        raise BadRecord("holds nothing but blanks or NUL bytes")
    try:
        value = json.loads(
            text, strict=False, parse_constant=str, parse_int=_whole, parse_float=_number
        )
    except RecursionError:
        raise BadRecord(f"is nested deeper than {MOST_DEPTH} levels") from None
    except ValueError as error:
        raise BadRecord(_reason(error, text)) from None
    _check_depth(value)
    return _storable(value)


def _reason(error: ValueError, text: str) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error}"
    if error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated string"):
        return f"is cut off: the JSON ends unfinished ({error.msg.lower()})"
    return f"is not JSON: {error.msg.lower()} at character {error.pos + 1}"


def _whole(text: str) -> int | str:
    return int(text) if len(text) < 40 else text


def _number(text: str) -> float | str:
    value = float(text)
    return value if value - value == 0 else text


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _unstorable.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list) else value


def _check_values(data: bytes) -> None:
    if sum(map(data.count, (b"{", b"[", b":"))) <= MOST_VALUES:
        return
    found = 0
    for match in _counted.finditer(data):  # braces and colons of texts are none
        found += match.lastindex is not None
        if found > MOST_VALUES:
            raise BadRecord(
                f"has over {MOST_VALUES:,} objects, lists and keys, as no log does: split it"
            )


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(inner for inner in item.values() if isinstance(inner, dict | list))
            elif isinstance(item, list):
                below.extend(inner for inner in item if isinstance(inner, dict | list))
        if not below:
            return
        level = below
    raise BadRecord(f"is nested deeper than {MOST_DEPTH} levels")
