"""Runs in the sandbox, before `examiner.py` and `candidate.py`: values as JSON that means the same.

Enter: plain Python data. Leave: JSON, and the data again. Invariant: what arrives is of Python's
own types alone, so that comparing it runs no code of the program that made it.
"""

from typing import Any

KINDS: dict[str, Any] = {"l": list, "t": tuple, "s": set, "f": frozenset}


def encode(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, str):
        return str.__getitem__(value, slice(None))
    for tag, kind in KINDS.items():
        if isinstance(value, kind):
            return [tag, *map(encode, kind.__iter__(value))]
    if isinstance(value, dict):
        return ["d", *([encode(key), encode(one)] for key, one in dict.items(value))]
    if isinstance(value, complex):
        return ["c", value.real, value.imag]
    if isinstance(value, bytes):
        return ["b", bytes.hex(value)]
    raise TypeError(f"a {type(value).__name__} is no plain data")


def decode(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    tag, *rest = value
    if tag == "d":
        return {decode(key): decode(one) for key, one in rest}
    if tag == "c":
        return complex(*rest)
    if tag == "b":
        return bytes.fromhex(rest[0])
    return KINDS[tag](map(decode, rest))
