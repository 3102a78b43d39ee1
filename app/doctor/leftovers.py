"""What killed processes left: promotions and turns under way, temporary files, orphans, locks."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from app.doctor.finding import Case, Finding, ago, many, ok, size, warning
from app.doctor.processes import FOLLOWERS, OURS, Process, belongs, holders, is_held, processes
from flywheel.home import Home
from serving.intents import Intent
from serving.presence import started

_OLD_S = 3600.0
"""After which a temporary file belongs to nobody any more."""
_HELD_S = 900.0
"""How long a promotion or commit may hold its lock before it is worth a word."""


def leftovers(case: Case) -> Iterator[Finding]:
    found = [
        *_promotions(case.home),
        *_turns(case.home),
        *_temporary(case.home),
        *_results(case.home),
        *_locks(case.home),
    ]
    yield from found
    if not found:
        yield ok("nothing was left half done")


def orphans(case: Case) -> Iterator[Finding]:
    """Processes of this home that should have ended with the one that started them."""
    known = processes()
    lost = [
        one
        for one in known.values()
        if one.module.startswith(FOLLOWERS)
        and belongs(one, case.home)
        and not _is_ours(known.get(one.parent))
    ]
    for one in lost:
        yield warning(
            f"pid {one.pid} ({one.command}) runs on without the process that started it",
            f"kill {one.pid}",
        )
    if not lost:
        yield ok("no process of ours was left behind")


def _is_ours(parent: Process | None) -> bool:
    if parent is None:
        return False
    command = any(Path(word).name in ("flywheel", "pytest") for word in parent.words[:3])
    return command or parent.module.startswith((*OURS, "pytest", "streamlit", "prefect"))


def _promotions(home: Home) -> Iterator[Finding]:
    for path in sorted(home.promotions.glob("*.json")):
        project = path.stem
        if is_held(home.locks / f"promotion-{project}.lock"):
            continue  # it runs
        try:
            intent = msgspec.json.decode(path.read_bytes(), type=Intent)
        except (OSError, msgspec.DecodeError) as error:
            yield warning(f"{path} is no intent: {error}", f"rm {path}: what serves stays")
            continue
        yield warning(
            f"a {intent.kind} of {intent.target.name} was killed under way",
            "the next start of flywheel serve, or the same command again, ends it",
        )
    for path in sorted(home.promotions.glob("*.broken")):
        yield warning(f"{path} was set aside: it is no intent", f"rm {path}")


def _turns(home: Home) -> Iterator[Finding]:
    for path in sorted(home.turns.glob("*.json")):
        if is_held(home.locks / f"turn-{path.stem}.lock"):
            continue  # it runs
        try:
            folder = json.loads(path.read_bytes())["folder"]
        except (OSError, ValueError, KeyError, TypeError):
            yield warning(f"{path} cannot be read", f"rm {path}: the next turn begins anew")
            continue
        yield warning(
            f"a turn of {path.stem} stopped under way; it began {ago(_age(path))} ago",
            f"flywheel turn {folder} goes on with it",
        )


def _temporary(home: Home) -> Iterator[Finding]:
    """Files that are written and then renamed, and were not renamed."""
    folders = [home.root, home.inbox, home.journal, home.promotions, home.turns, home.projects]
    folders += [home.datasets, home.runs, *home.runs.glob("*"), home.quarantine, home.raw]
    old = [
        path
        for folder in folders
        for path in folder.glob(".*")
        if _age(path) > _OLD_S and path.name != ".gitignore"
    ]
    old += [path for path in home.prefect.glob("server-[0-9]*") if started(_pid(path)) is None]
    if old:
        whole = sum(_size(path) for path in old)
        yield warning(
            f"{many(len(old), 'temporary file')} that nobody ended ({size(whole)}): {old[0]}",
            "rm -r " + " ".join(map(str, old[:20])),
        )


def _results(home: Home) -> Iterator[Finding]:
    """By the names that `tasks.step.key_of` gives them: what else lies there is how a flow failed,
    as Prefect keeps it."""
    torn = []
    for path in (home.prefect / "storage").glob("*-*-*"):
        try:
            json.loads(path.read_bytes())
        except (OSError, ValueError):
            torn.append(path)
    if torn and not any(is_held(path) for path in home.locks.glob("turn-*.lock")):
        yield warning(
            f"{many(len(torn), 'torn result')} of a turn's steps",
            "the next turn removes them, and redoes",
        )


def _locks(home: Home) -> Iterator[Finding]:
    """Locks end with their process; one that is held for long tells of a process that hangs."""
    for name in ("commit", "routing", "mlflow"):
        for pid in holders(home.locks / f"{name}.lock"):
            since = _alive_s(pid)
            if since is not None and since > _HELD_S:
                yield warning(
                    f"pid {pid}, which began {ago(since)} ago, holds the {name} lock",
                    f"look again; if it stays, see what it does (cat /proc/{pid}/cmdline)",
                )


def _alive_s(pid: int) -> float | None:
    """Seconds that a process has been there; None = it is not."""
    begun = started(pid)
    if begun is None:
        return None
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - int(begun.rpartition(":")[2]) / os.sysconf("SC_CLK_TCK")


def _pid(path: Path) -> int:
    """The process that a name ends with; 0, which none is, where it ends otherwise."""
    number = path.name.partition("-")[2]
    return int(number) if number.isdecimal() and len(number) <= 10 else 0


def _age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(one.lstat().st_size for one in files if one.exists())
