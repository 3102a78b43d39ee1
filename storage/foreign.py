"""What another machine left in the lake, looked at before it is believed: any that may write there
may have left it, or have another version of this code.

Enter a name and bytes; leave bytes that may lie in this home, or a `CorruptFile` that says why not.
Invariant: rows that are let in are what this code makes of the records that they say: each is read,
and made rows again, so that no id stands for another content than its own.
"""

import re
from urllib.parse import unquote

import zstandard

from flywheel.errors import CorruptFile
from flywheel.ids import digest_bytes
from storage import inbox, prepared
from storage.envelope import decode, encode
from storage.prepared import SHAPES, Tables

LARGEST = 512 << 20
"""Bytes of one object, and what it may unpack to."""
_SEGMENT = re.compile(r"[A-Za-z0-9_%~-][A-Za-z0-9_%~.-]{0,240}\.segment")
_OURS = ("journal:", "erasure:")
"""Names of the ledger that stand for no segment."""
_RAW = re.compile(r"([0-9a-f]{2})/(\1[0-9a-f]{30})\.zst")


def segment(name: str, data: bytes) -> bytes:
    """The bytes of a segment that may lie in the inbox as `name`.

    Raises:
        CorruptFile: it is none, or no file may be called that.
    """
    if not _SEGMENT.fullmatch(name) or unquote(name).startswith(_OURS):
        raise CorruptFile(f"{name[:300]!r} is no segment's name")
    _bounded(data)
    plain = inbox.opened(data)
    if not plain.startswith(prepared.HEADER):
        inbox.lines_of(plain)  # each line is looked at by the committer
        return data
    made = _made_again(plain)
    return data if made == plain else inbox.packed(made)


def raw(name: str, data: bytes) -> bytes:
    """A raw object as it lies in the raw store.

    Raises:
        CorruptFile: its name is not the digest of what it holds.
    """
    if (named := _RAW.fullmatch(name)) is None:
        raise CorruptFile(f"{name[:300]!r} names no raw bytes")
    _bounded(data)
    try:
        plain = zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise CorruptFile(f"{name} cannot be unpacked: {error}") from error
    if digest_bytes(plain) != named[2]:
        raise CorruptFile(f"{name} holds other bytes than its name says")
    return data


def _bounded(data: bytes) -> None:
    try:
        size = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise CorruptFile(f"it cannot be unpacked: {error}") from error
    if not 0 <= size <= LARGEST:
        raise CorruptFile(f"it says that it unpacks to {size} bytes, {LARGEST} are the most")


def _made_again(plain: bytes) -> bytes:
    """Rows as their records make them."""
    tables = prepared.tables(plain)
    _shaped(tables)
    try:
        # Through their lines, for columns know less of what a value may be than records do.
        found = [decode(encode(one))[1] for one in prepared.records(tables)]
        return prepared.prepare(found)  # type: ignore[arg-type]
    except Exception as error:
        raise CorruptFile(f"its rows are those of no record: {error!r}"[:300]) from error


def _shaped(tables: Tables) -> None:
    import pyarrow as pa

    from storage.arrow import type_of

    for name, table in tables.items():
        wanted = [(column, type_of(kind)) for column, kind in SHAPES[name].items()]
        if [(field.name, field.type) for field in table.schema] != wanted:
            raise CorruptFile(f"its {name} have other columns than here: its machine has another "
                              "version; bring both to one, and import it again")  # fmt: skip
        try:
            table.validate(full=True)  # offsets within their buffers, texts of UTF-8
        except pa.ArrowInvalid as error:
            raise CorruptFile(f"its {name} are damaged: {error}") from error
