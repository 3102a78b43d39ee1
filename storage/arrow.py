"""Columns of Python values as Arrow arrays, made of buffers.

Enter values parallel to rows, and DuckDB's name of their type; leaves the array that they are.
`pyarrow.array` would do it too, and would load pandas first: a third of a second for each process
that commits.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


def type_of(kind: str) -> "pa.DataType":
    """Offsets are of 64 bits, so that no column is too large."""
    import pyarrow as pa

    if kind.endswith("[]"):
        return pa.large_list(type_of(kind.removesuffix("[]")))
    plain: dict[str, Callable[[], pa.DataType]] = {
        "VARCHAR": pa.large_string, "BLOB": pa.large_binary, "BIGINT": pa.int64,
        "DOUBLE": pa.float64, "BOOLEAN": pa.bool_,
    }  # fmt: skip
    return plain[kind]()


def together(shape: dict[str, str], columns: Iterable["Sequence[Any] | pa.Array"]) -> "pa.Table":
    """A table of `shape` from the values of its columns, or the arrays that they are already.

    Raises:
        OverflowError, TypeError, ValueError: as `array_of`.
    """
    import pyarrow as pa

    made = [
        one if isinstance(one, pa.Array) else array_of(one, kind)
        for one, kind in zip(columns, shape.values(), strict=True)
    ]
    return pa.Table.from_arrays(made, names=list(shape))


def array_of(values: Sequence[Any], kind: str) -> "pa.Array":
    """`values`, with None for null, as an array of DuckDB's type `kind`.

    Raises:
        OverflowError, TypeError, ValueError: a value does not fit.
    """
    import pyarrow as pa

    absent = values.count(None)
    if absent == len(values):
        return pa.nulls(len(values), type_of(kind))
    valid = None if not absent else _bits([value is not None for value in values])
    if kind.endswith("[]"):
        held = [value or () for value in values] if absent else values
        inner = array_of(list(chain.from_iterable(held)), kind.removesuffix("[]"))
        buffers, children = [valid, _offsets(held)], [inner]
    else:
        buffers, children = [valid, *_BUFFERS[kind](values, absent)], None
    return pa.Array.from_buffers(type_of(kind), len(values), buffers, absent, children=children)


def texts_of(data: bytes, width: int) -> "pa.Array":
    """ASCII texts of `width` characters each, one after the other."""
    import numpy as np
    import pyarrow as pa

    count = len(data) // width
    offsets = np.arange(count + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_of("VARCHAR"), count, buffers, 0)


def numbers_of(values: "NDArray[np.int64]") -> "pa.Array":
    import pyarrow as pa

    return pa.Array.from_buffers(type_of("BIGINT"), len(values), [None, pa.py_buffer(values)], 0)


def lists_of(ends: "NDArray[np.int64]", inner: "pa.Array") -> "pa.Array":
    """Lists of texts: where each ends in `inner`, which holds them all."""
    import numpy as np
    import pyarrow as pa

    offsets = pa.py_buffer(np.concatenate(([0], ends)).astype(np.int64))
    return pa.Array.from_buffers(
        type_of("VARCHAR[]"), len(ends), [None, offsets], 0, children=[inner]
    )


def _texts(values: Sequence[Any], absent: int) -> list["pa.Buffer"]:
    """Texts, or their UTF-8."""
    import pyarrow as pa

    if not absent and values[0] == values[-1] and values.count(values[0]) == len(values):
        return _alike(values[0], len(values))
    encoded = isinstance(next(value for value in values if value is not None), bytes)
    none = b"" if encoded else ""
    held: Sequence[Any] = [value or none for value in values] if absent else values
    if encoded:
        return [_offsets(held), pa.py_buffer(b"".join(held))]
    text = "".join(held)
    data = text.encode()
    if len(data) != len(text):
        held = [value.encode() for value in held]
    return [_offsets(held), pa.py_buffer(data)]


def _alike(text: str | bytes, count: int) -> list["pa.Buffer"]:
    """The same text, `count` times."""
    import numpy as np
    import pyarrow as pa

    data = text.encode() if isinstance(text, str) else text
    offsets = np.arange(count + 1, dtype=np.int64) * len(data)
    return [pa.py_buffer(offsets), pa.py_buffer(data * count)]


def _whole(values: Sequence[Any], absent: int) -> list["pa.Buffer"]:
    return [_numbers("q", values, absent)]


def _floats(values: Sequence[Any], absent: int) -> list["pa.Buffer"]:
    return [_numbers("d", values, absent)]


def _truths(values: Sequence[Any], absent: int) -> list["pa.Buffer"]:
    return [_bits([value is True for value in values])]


_BUFFERS: dict[str, Callable[[Sequence[Any], int], list["pa.Buffer"]]] = {
    "VARCHAR": _texts, "BLOB": _texts, "BIGINT": _whole, "DOUBLE": _floats, "BOOLEAN": _truths,
}  # fmt: skip


def _numbers(code: str, values: Sequence[Any], absent: int) -> "pa.Buffer":
    import pyarrow as pa

    held = [0 if value is None else value for value in values] if absent else values
    return pa.py_buffer(array(code, held))


def _offsets(values: Sequence[Any]) -> "pa.Buffer":
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    return pa.py_buffer(offsets)


def _bits(truths: Sequence[bool]) -> "pa.Buffer":
    """One bit each, the least significant first."""
    import numpy as np
    import pyarrow as pa

    return pa.py_buffer(np.packbits(np.array(truths, np.bool_), bitorder="little"))
