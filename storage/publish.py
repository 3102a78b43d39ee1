"""Publishing: what was committed since the last time as Parquet parts in the lake, and a manifest.

Enters a home with its lake; leaves one manifest more, which names every part. Parts are written
first and a manifest is put if it is absent, so a publisher that is killed leaves nothing that
anybody reads, and of two that publish at once the second sees the first's. After an erasure all
parts are written anew and the old ones go, with every manifest that named them.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from flywheel.errors import UsageError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import digest_bytes
from flywheel.progress import report
from flywheel.records import Record
from storage.database import reading
from storage.home_id import home_id
from storage.lake import Lake, open_lake
from storage.mirror import mirror, renew
from storage.published import (
    LAYOUT,
    TABLES,
    Manifest,
    Part,
    Place,
    key_of,
    made_by,
    manifest,
    manifests,
    newest,
)  # fmt: skip
from storage.scratch import scratch
from storage.tables_out import Moved, Piece, Span, planned, written

MOST_PARTS = 400
"""Above it all is written anew, as few large parts."""
KEPT = 10
"""Newest manifests whose parts stay for those who are reading them."""
_TRIES = 20


class Published(Record, frozen=True, kw_only=True):
    url: str
    manifest: int
    sequence: int
    parts: int
    """New ones."""
    rows: int
    """In these."""
    files: int
    """Raw bytes and datasets that were not there yet."""
    whole: bool
    """Whether all was written anew."""


def publish(home: Home, lake: Lake | None = None, *, anew: bool = False) -> Published:
    """
    Args:
        anew: no part that is there stays: an erasure goes on cleaning rows after it began, and who
            publishes meanwhile reads them.

    Raises:
        UsageError: no lake is set, or it is another home's.
        LakeError: it cannot be reached; what was put stays, and the next try goes on.
        Busy: a commit held the database for too long.
    """
    lake = lake or lake_of(home)
    for _ in range(_TRIES):
        if (made := _publish(home, lake, anew)) is not None:
            return made
    raise UsageError(f"others publish to {lake.url} all the time: one home may, one at a time")


def lake_of(home: Home) -> Lake:
    if home.lake is None:
        raise UsageError("no lake: FLYWHEEL_LAKE names a folder, or s3://bucket/prefix")
    return open_lake(home.lake)


def _publish(home: Home, lake: Lake, anew: bool) -> Published | None:
    """None = somebody else published meanwhile, or an erasure moved what was planned."""
    before, own = newest(lake), home_id(home)
    if before is not None and before.home != own:
        raise UsageError(
            f"{lake.url} is another home's lake ({before.home}): give each home a prefix of its own"
        )
    sequence, erased = _reached(home)
    gone = before is not None and before.erased < erased
    # A home that was put back from a copy has reached less than it published once.
    back = before is not None and (before.erased > erased or before.sequence > sequence)
    whole = before is None or anew or gone or back or len(before.parts) > MOST_PARTS
    since = 0 if whole or before is None else before.sequence
    number = 1 if before is None else before.number + 1
    files = renew(home, lake) if gone or anew else mirror(home, lake)
    if before is not None and not whole and sequence == since:
        _clean(lake, before)  # where the one that put it was killed
        return _told(lake, before, [], files, whole=False)
    kept, told = ((), None) if whole or before is None else (before.parts, before.messages)
    plan = _plan(home, Span(since, sequence), told)
    try:
        made = list(_parts(home, lake, number, plan))
    except Moved:
        return None
    new = Manifest(
        number=number, layout=LAYOUT, home=own, sequence=sequence, erased=erased,
        parts=(*kept, *made), messages=next((one.end for one in plan[::-1] if one.end), told),
    )  # fmt: skip
    failpoint("lake.before_manifest")
    if not lake.put_new(key_of(number), msgspec.json.encode(new)):
        return None
    failpoint("lake.after_manifest")
    _clean(lake, new, anew=anew)
    return _told(lake, new, made, files, whole=whole)


def _told(lake: Lake, of: Manifest, made: list[Part], files: int, *, whole: bool) -> Published:
    return Published(
        url=lake.url, manifest=of.number, sequence=of.sequence, parts=len(made),
        rows=sum(one.rows for one in made), files=files, whole=whole,
    )  # fmt: skip


def _reached(home: Home) -> tuple[int, int]:
    """Sequence of the last commit, and when the last erasure began."""
    with reading(home) as database:
        if database is None:
            return 0, 0
        ((sequence, erased),) = database.execute(
            "SELECT (SELECT coalesce(max(sequence), 0) FROM segments), "
            "(SELECT coalesce(max(erased), 0) FROM erasures)"
        ).fetchall()
    return int(sequence), int(erased)


def _plan(home: Home, span: Span, told: Place | None) -> list[Piece]:
    with reading(home) as database:
        return [] if database is None else planned(database, span, told)


def _parts(home: Home, lake: Lake, number: int, plan: list[Piece]) -> Iterator[Part]:
    """Puts the parts of all tables; each is read in an open of its own, so that commits go on."""
    with scratch(home.pools) as folder:
        for done, piece in enumerate(plan):
            report("publishing", done, len(plan), piece.table)
            if made := _part(home, lake, number, piece, folder / "part.parquet"):
                yield made
    report("publishing", len(plan), len(plan))


def _part(home: Home, lake: Lake, number: int, piece: Piece, path: Path) -> Part | None:
    with reading(home) as database:
        if database is None:
            return None
        rows = written(database, piece, path)
    if not rows:
        return None
    data = path.read_bytes()
    found, (first, last) = digest_bytes(data), piece.span
    key = f"{TABLES}{piece.table}/{number:012d}-{first}-{last}-{found[:12]}.parquet"
    lake.put_new(key, data)
    return Part(
        table=piece.table, key=key, digest=found, bytes=len(data), rows=rows, first=first,
        last=last,
    )  # fmt: skip


def _clean(lake: Lake, last: Manifest, *, anew: bool = False) -> None:
    """Removes manifests that nobody need read any more, or of before the last erasure (where all
    is anew: all before `last`); then parts that none of the rest names."""
    keys = manifests(lake)
    held = {key: manifest(lake, key) for key in keys[-KEPT:]}
    oldest = last.number if anew else 0
    staying = {
        key: one for key, one in held.items()
        if one.erased >= last.erased and one.number >= oldest
    }  # fmt: skip
    for key in keys:
        if key not in staying:
            lake.delete(key)
    named = {part.key for one in staying.values() for part in one.parts}
    for found in lake.list(TABLES):
        number = made_by(found.key)
        if number is not None and number <= last.number and found.key not in named:
            lake.delete(found.key)
