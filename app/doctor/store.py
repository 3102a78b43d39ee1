"""The store: does it open, what waits, what could not be understood, what was left half done."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from app.doctor.finding import Case, Finding, ago, many, ok, size, warning, wrong
from app.doctor.processes import holders, processes
from flywheel.errors import Busy, CorruptFile, FlywheelError
from storage import inbox, journal

_STALE_S = 86_400.0
"""How long something may wait before somebody should look."""
_READ = 32 << 20
"""Bytes of waiting segments that a look which is not deep unpacks."""


def store(case: Case) -> Iterator[Finding]:
    from storage.database import reading
    from storage.overview import known_projects
    from storage.queries import counts
    from storage.schema import newest, version

    home = case.home
    if not home.database.exists():
        yield ok("no store yet: the first flywheel ingest makes it")
        return
    try:
        with reading(home, wait_s=3.0) as database:
            reached = version(database) if database else newest()
        names = known_projects(home)
        held = {name: counts(home, name) for name in names}
    except Busy as error:
        yield warning(f"the store is in use: {error}", f"wait, or see {_holder(home.root)}")
        return
    except CorruptFile as error:
        yield wrong(
            str(error),
            f"put a copy of {home.database} back, or move it away: inbox, raw and runs stay",
        )
        return
    except FlywheelError as error:
        older = "flywheel ingest" in str(error)
        yield wrong(str(error), "flywheel ingest" if older else "bring this checkout up to date")
        return
    told = ", ".join(f"{many(one['traces'], 'trace')} of {name}" for name, one in held.items())
    yield ok(f"the store opens, version {reached}, {size(home.database.stat().st_size)}: "
             f"{told or 'no traces yet'}")  # fmt: skip


def waiting(case: Case) -> Iterator[Finding]:
    paths = inbox.Inbox(case.home).pending()
    files = journal.files(case.home)
    oldest = min((_since(path) for path in paths), default=None)
    if not paths:
        yield ok("nothing waits in the inbox")
    else:
        says = f"{many(len(paths), 'segment')} in the inbox, the oldest {ago(oldest or 0)} old"
        late = (oldest or 0) > _STALE_S
        yield warning(says, "flywheel ingest") if late else ok(says)
    broken = list(_unreadable(paths, None if case.deep else _READ))
    if broken:
        yield warning(
            f"{many(len(broken), 'segment')} in the inbox cannot be read: {broken[0]}",
            "flywheel ingest puts them into quarantine, and takes in the rest",
        )
    yield from _journals(files)


def quarantine(case: Case) -> Iterator[Finding]:
    reasons = sorted(case.home.quarantine.glob("*.why"), key=_since)
    if not reasons:
        yield ok("nothing is in quarantine")
        return
    newest = reasons[0]
    yield warning(
        f"{many(len(reasons), 'thing')} in quarantine, the newest {ago(_since(newest))} old: "
        f"{_reason(newest)}",
        f"look at {newest.with_suffix('')}; mend its source, bring it in again, remove both",
    )


def _journals(files: list[Path]) -> Iterator[Finding]:
    torn = 0
    for path in files:
        left = journal.abandoned(path)
        torn += len(journal.read(path, 0, last=left).torn)
    if torn:
        yield warning(
            f"{many(torn, 'torn line')} in the gateway's journals",
            "flywheel ingest puts them into quarantine, and takes in the rest",
        )
    else:
        yield ok(f"{many(len(files), 'journal')} of the gateway, every line whole")


def _unreadable(paths: list[Path], most: int | None) -> Iterator[str]:
    for path in paths:
        try:
            data = path.read_bytes()
            if most is not None and (most := most - len(data)) < 0:
                return
            inbox.unpack(data)
        except FileNotFoundError:
            continue  # committed meanwhile
        except (CorruptFile, OSError) as error:
            yield f"{path.name}: {error}"


def _since(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _reason(path: Path) -> str:
    try:
        return str(json.loads(path.read_bytes())["reason"])[:300]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path.name} does not say why"


def _holder(root: Path) -> str:
    pids = [*holders(root / "flywheel.duckdb"), *holders(root / "locks" / "commit.lock")]
    known = processes()
    who = [f"pid {pid} ({known[pid].command})" for pid in pids if pid in known]
    return " and ".join(who) or "who has it open: fuser -v " + str(root / "flywheel.duckdb")
