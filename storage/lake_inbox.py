"""Segments that travel: machines without the database leave them in the lake, the committer's takes
them.

`send` puts what waits here into the lake's inbox and forgets it here; `fetch` brings it into this
home's inbox. A segment has one name wherever it is, and the ledger takes no name twice: killed
between any two steps, either does the same again and nothing is lost or counted twice.
"""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, UsageError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import digest
from flywheel.records import Record
from storage import foreign, inbox, journal
from storage.database import exists
from storage.home_id import home_id
from storage.lake import Lake, Stored, open_lake
from storage.quarantine import quarantine

INBOX, RAW = "inbox/segments/", "inbox/raw/"
_Look = Callable[[str, bytes], bytes]
"""Name and bytes to the bytes that may be kept; raises CorruptFile."""


class Sent(Record, frozen=True, kw_only=True):
    segments: int
    """Put there."""
    raw: int
    """Raw objects."""


def send(home: Home, lake: Lake) -> Sent:
    """Leaves all that waits in this home for the machine that commits: raw bytes, what journals
    have since the last time, segments.

    Raises:
        UsageError: this home commits for itself.
        LakeError: the lake cannot be reached; what was not sent waits here.
    """
    if exists(home):
        raise UsageError(
            f"{home.root} has a database of its own: `flywheel ingest` commits here, and "
            "`flywheel publish` shares it"
        )
    own = home_id(home)
    # Raw bytes first: a segment that is there names nothing that is not.
    raw = _send_raw(home, lake)
    segments = _send_journals(home, lake, own)
    for path in inbox.Inbox(home).pending():
        with contextlib.suppress(FileNotFoundError):
            segments += lake.put_new(INBOX + path.name, path.read_bytes())
            failpoint("lake.segment_sent")
            path.unlink(missing_ok=True)
    return Sent(segments=segments, raw=raw)


def handed_on(home: Home) -> None:
    """What a worker took goes to the machine that commits, where that is another one."""
    if home.lake is not None and not exists(home):
        send(home, open_lake(home.lake))


def fetched(home: Home) -> int:
    """`fetch` from the home's own lake; 0 where it has none."""
    return 0 if home.lake is None else fetch(home, open_lake(home.lake))


def fetch(home: Home, lake: Lake) -> int:
    """Brings what others sent into this home's inbox; returns how many segments.

    Raises:
        LakeError: the lake cannot be reached.
    """
    for one in lake.list(RAW):
        with contextlib.suppress(KeyError):
            _fetch(home, lake, one, RAW, home.raw, foreign.raw)
    fetched = 0
    for one in lake.list(INBOX):
        with contextlib.suppress(KeyError):
            fetched += _fetch(home, lake, one, INBOX, home.inbox, foreign.segment)
    return fetched


def _fetch(home: Home, lake: Lake, one: Stored, area: str, into: Path, looked_at: _Look) -> int:
    """Whether it is new here. What cannot be believed goes to the quarantine."""
    name = one.key.removeprefix(area)
    if one.size > foreign.LARGEST:
        said = f"{lake.url}/{one.key} has {one.size} bytes, {foreign.LARGEST} are the most"
        quarantine(home, _flat(name), b"", f"{said}: it is left there, look who sent it")
        return 0
    data = lake.get(one.key)
    try:
        data = looked_at(name, data)
    except CorruptFile as error:
        quarantine(home, _flat(name), data, f"sent by another machine: {error}")
        new = False
    else:
        new = not (into / name).exists()
        if new:
            durable.write(into / name, data)
    failpoint("lake.segment_fetched")
    lake.delete(one.key)
    return int(new)


def _flat(name: str) -> str:
    """Any key as the name of a file."""
    plain = re.sub(r"[^A-Za-z0-9_%-]", "_", name)
    return plain if plain == name and len(name) <= 150 else f"{plain[:150]}-{digest(name)[:8]}"


def _send_raw(home: Home, lake: Lake) -> int:
    sent, known = 0, _known(home)
    for path in sorted(home.raw.rglob("*.zst")) if home.raw.is_dir() else ():
        key = str(path.relative_to(home.raw))
        if key not in known.raw:
            sent += lake.put_new(RAW + key, path.read_bytes())
            known.raw.add(key)
    _keep(home, known)
    return sent


def _send_journals(home: Home, lake: Lake, own: str) -> int:
    """What journals have from where they were sent to before, each piece a segment."""
    sent, known = 0, _known(home)
    for path in journal.files(home):
        name, last = journal.name_of(path), journal.abandoned(path)
        start = known.journals.get(name, 0)
        tail = journal.read(path, start, last=last)
        for place, line in tail.torn:
            quarantine(
                home, f"{name.replace(':', '-')}-{place}", line, "the line is cut or changed"
            )
        if tail.lines:
            piece = f"{own}-{name.replace(':', '-')}-{start}-{tail.end}.segment"
            sent += lake.put_new(INBOX + piece, inbox.pack([line for _, line in tail.lines]))
            failpoint("lake.journal_sent")
        known.journals[name] = tail.end
        _keep(home, known)
        if last:
            path.unlink(missing_ok=True)
            known.journals.pop(name, None)
            _keep(home, known)
    return sent


class _Known(msgspec.Struct):
    """How far this home was sent."""

    journals: dict[str, int] = msgspec.field(default_factory=dict)
    raw: set[str] = msgspec.field(default_factory=set)


def _known(home: Home) -> _Known:
    try:
        return msgspec.json.decode((home.root / "sent.json").read_bytes(), type=_Known)
    except (FileNotFoundError, msgspec.DecodeError):
        return _Known()  # sent again: names and hashes are the same


def _keep(home: Home, known: _Known) -> None:
    durable.write(home.root / "sent.json", msgspec.json.encode(known))
