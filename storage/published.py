"""What a home published in its lake, read by anybody: tables as they stood at one ledger sequence.

A lake enters; leave the newest manifest and its tables as polars frames. Parts are kept beside the
home by their digest, so that each is fetched once. Invariant: a part that is not what its manifest
says is never read.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, UsageError
from flywheel.ids import digest_bytes
from flywheel.records import Record
from storage.lake import Lake

if TYPE_CHECKING:
    import polars as pl

LAYOUT = 1
MANIFESTS, TABLES = "manifests/", "tables/"
_MANIFEST = re.compile(rf"{MANIFESTS}[0-9]{{12,18}}\.json")
_PART = re.compile(rf"{TABLES}[a-z_]+/[0-9]{{12,18}}-[0-9]+-[0-9]+-[0-9a-f]{{12}}\.parquet")
_DIGEST = re.compile(r"[0-9a-f]{32}")
KEYS: dict[str, tuple[str, ...]] = {
    "traces": ("id",), "spans": ("trace_id", "id"), "tokens": ("trace_id", "span_id", "choice"),
    "messages": ("id",), "toolsets": ("id",), "threads": ("trace_id", "since"),
}  # fmt: skip
"""What names a row; of the tables that are not here its id. The row of the highest `since` stands:
a row that was replaced is in an earlier part still."""


class Part(Record, frozen=True, kw_only=True):
    table: str
    key: str
    """In the lake."""
    digest: str
    bytes: int
    rows: int
    first: int
    """Ledger sequences of its rows: after this one,"""
    last: int
    """up to this one."""


class Place(Record, frozen=True, kw_only=True):
    """Up to where the home's messages are in the parts: they come behind one another."""

    rows: int
    id: str
    """Of the last one. Another is there = they were written anew, and none is known to be here."""


class Manifest(Record, frozen=True, kw_only=True):
    number: int
    """One more than the one before; who puts it first has it."""
    layout: int
    home: str
    """Id of the home that publishes here; a lake is one home's."""
    sequence: int
    """Of the ledger: all that was committed up to it is in the parts."""
    erased: int
    """Sequence of the last erasure that they are made after; 0 = none."""
    parts: tuple[Part, ...]
    messages: Place | None = None
    """None = none, or an earlier program's manifest: they are published again."""


def newest(lake: Lake) -> Manifest | None:
    """None = nothing was published.

    Raises:
        CorruptFile: it is no manifest that this program knows.
    """
    keys = manifests(lake)
    return manifest(lake, keys[-1]) if keys else None


def manifests(lake: Lake) -> list[str]:
    """Their keys, the newest last. What else lies there is nobody's manifest."""
    found = [one.key for one in lake.list(MANIFESTS) if _MANIFEST.fullmatch(one.key)]
    return sorted(found, key=_number)


def made_by(key: str) -> int | None:
    """The number of the manifest that a part was made for; None = it is no part."""
    return _number(key) if _PART.fullmatch(key) else None


def _number(key: str) -> int:
    return int(key.rpartition("/")[2].split("-")[0].removesuffix(".json"))


def manifest(lake: Lake, key: str) -> Manifest:
    try:
        found = msgspec.json.decode(lake.get(key), type=Manifest)
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptFile(
            f"{lake.url}/{key} is no manifest ({error}): remove it, and publish again"
        ) from error
    if found.layout != LAYOUT:
        raise CorruptFile(f"{lake.url} is of layout {found.layout}, this program's is {LAYOUT}")
    odd = [one.key for one in found.parts if not _sound(one)]
    if key != key_of(found.number) or odd:
        raise CorruptFile(
            f"{lake.url}/{key} is not as this program makes manifests (number {found.number}, "
            f"odd parts {odd[:3]}): remove it, and publish again"
        )
    return found


def _sound(part: Part) -> bool:
    """Whether it lies among the tables, and is no file of anybody else's here."""
    return bool(_PART.fullmatch(part.key) and _DIGEST.fullmatch(part.digest))


def key_of(number: int) -> str:
    return f"{MANIFESTS}{number:012d}.json"


def table(lake: Lake, of: Manifest, name: str, cache: Path) -> "pl.LazyFrame":
    """One table, each row as it stood at the manifest's sequence.

    Raises:
        UsageError: the manifest has no such table.
        CorruptFile: a part is not what the manifest says.
    """
    import polars as pl

    parts = [one for one in of.parts if one.table == name]
    if not parts:
        names = sorted({one.table for one in of.parts})
        raise UsageError(f"no table {name!r} was published: {', '.join(names) or 'none'} are there")
    frames = [pl.scan_parquet(fetched(lake, one, cache), glob=False) for one in parts]
    whole = pl.concat(frames, how="diagonal")
    keys = KEYS.get(name, ("id",))
    if name in ("messages", "toolsets"):
        return whole.unique(subset=keys, keep="any")
    rows = whole.sort("since", maintain_order=True).unique(subset=keys, keep="last")
    if name == "threads":  # a thread that ended is in a later part once more
        return rows.filter(pl.col("until").is_null())
    if name != "tokens":
        return rows
    # A span that was replaced may have lost its tokens: only those of its newest row stand.
    spans = table(lake, of, "spans", cache).select(
        "trace_id", pl.col("id").alias("span_id"), "since"
    )
    return rows.join(spans, on=["trace_id", "span_id", "since"], how="semi")


def fetched(lake: Lake, part: Part, cache: Path) -> Path:
    """The part's file here."""
    path = cache / f"{part.digest}.parquet"
    if not path.is_file() or path.stat().st_size != part.bytes:
        try:
            data = lake.get(part.key)
        except KeyError:
            raise CorruptFile(
                f"{lake.url}/{part.key} is gone: a newer manifest took its place; read that one"
            ) from None
        if digest_bytes(data) != part.digest:
            raise CorruptFile(f"{lake.url}/{part.key} is not what its manifest says")
        durable.write(path, data)
    return path
