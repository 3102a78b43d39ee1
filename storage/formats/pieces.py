"""Texts and lists that come in pieces, put together at the end.

What enters are the pieces, one by one, under a key of a dictionary; what leaves is the dictionary
with whole values. Adding each piece to all before it would take the square of a stream's length.
"""

from typing import Any


class Pieces(list[Any]):
    """The pieces of one value so far: all texts, or all lists."""


def add(holder: dict[str, Any], key: str, piece: str | list[Any]) -> None:
    """`piece` behind what `holder` has under `key`; another kind of value there gives way."""
    held = holder.get(key)
    if type(held) is not Pieces or type(held[0]) is not type(piece):
        first = [held] if type(held) is type(piece) else []
        held = holder[key] = Pieces(first)
    held.append(piece)


def joined(value: Any) -> Any:
    """`value` with every Pieces in it put together; what was given stays as it is."""
    if type(value) is Pieces:
        if type(value[0]) is str:
            return "".join(value)
        return [one for piece in value for one in piece]
    if type(value) is dict:
        return {key: joined(one) for key, one in value.items()}
    if type(value) is list:
        return [joined(one) for one in value]
    return value
