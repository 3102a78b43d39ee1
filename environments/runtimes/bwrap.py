"""The command line of one sandboxed program: what it sees, who it is, what it may use.

Enter: the runtime's folders and the program. Leaves: the words for bubblewrap. Invariant: nothing
of the host is visible but its system folders, read-only, the interpreter, what the configuration
names, and the workspace; no variable of the host's environment is passed on.
"""

import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from environments.runtimes.contract import Limits
from flywheel.errors import MissingPart, ProjectError

WORKSPACE = "/workspace"
DOOR = "/run/door"
"""The one socket that a program may be given."""
OWN = ("/tmp", "/dev/shm")
"""Folders in memory."""
PYTHON = "/opt/python/bin/python3"
ORDINARY = 1000
"""User that a program seems to be where we are no root."""
_SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_ETC = ("ld.so.cache", "alternatives", "localtime")
_NETWORK_ETC = ("resolv.conf", "nsswitch.conf", "ssl", "ca-certificates")
_LAST = (
    'BOUNDS && cd -- "$1" || exit 126; shift; exec {errors}>&2 2>/dev/null; '
    '"$@" 2>&$errors {errors}>&- FD>&-; ended=$?; times >&FD; exit $ended'
)
"""The last step before the program: what it and its children used is told to an open file that
they do not have; what the shell itself says of their end is not told."""
_ENVIRONMENT = {
    "PATH": "/opt/python/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": WORKSPACE,
    "TMPDIR": "/tmp",
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_SPARE = 256 << 20


class Words(NamedTuple):
    options: list[str]
    """Of bubblewrap; they go by a pipe, so that no program reads the host's paths in /proc."""
    before: list[str]
    bounds: str
    """As the last shell sets them."""
    command: Sequence[str]
    cwd: str

    def program(self, times: int) -> list[str]:
        """`times`: the descriptor that is told what the program used."""
        last = _LAST.replace("BOUNDS", self.bounds).replace("FD", str(times))
        shell = ["/bin/bash", "-c", last, "sandbox", f"{WORKSPACE}/{self.cwd}"]
        return [*self.before, *shell, *self.command]


class Scene(NamedTuple):
    """Where one program runs."""

    work: Path
    etc: Path
    readable: tuple[Path, ...]
    uid: int | None
    """None = we are no root: the program is us, in a name space of its own."""
    door: Path | None = None


def words(
    scene: Scene, limits: Limits, command: Sequence[str], env: Mapping[str, str], cwd: str
) -> Words:
    options = _apart(scene, limits)
    for inner in ("/etc", "/run", "/opt/python/bin", "/opt/python/lib"):
        options += _folders(inner)
    options += [*_system(), *_etc(scene, limits), *_interpreter()]
    options += ["--proc", "/proc", "--dev", "/dev"]
    small = str(min(limits.workspace, limits.memory // 4))
    for own in OWN:
        options += ["--perms", "1777", "--size", small, "--tmpfs", own]
    for folder in scene.readable:
        options += [*_folders(str(folder.parent)), "--ro-bind", str(folder), str(folder)]
    options += ["--bind", str(scene.work), WORKSPACE]
    if scene.door is not None:
        options += ["--bind", str(scene.door), DOOR]
    options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    for name, value in {**_ENVIRONMENT, **_library_path(), **env}.items():
        options += ["--setenv", name, value]
    return Words(options, _as_user(scene.uid), _bounds(limits), command, cwd)


def _apart(scene: Scene, limits: Limits) -> list[str]:
    options = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    options += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    if not limits.network:
        options.append("--unshare-net")
    if scene.uid is None:
        who = str(ORDINARY)
        return [*options, "--unshare-user", "--disable-userns", "--uid", who, "--gid", who]
    options += ["--cap-drop", "ALL"]
    for needed in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
        options += ["--cap-add", needed]
    return options


@cache
def _folders(inner: str) -> list[str]:
    """Those that others are put into; bubblewrap would make them for root alone."""
    path = Path(inner)
    above = [*reversed(path.parents), path][1:]
    return [word for one in above for word in ("--perms", "0755", "--dir", str(one))]


@cache
def _system() -> tuple[str, ...]:
    """/usr, and the folders beside it as the host has them: links into it, or folders."""
    options = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    return tuple(options)


def _etc(scene: Scene, limits: Limits) -> list[str]:
    options = []
    for name in _ETC + (_NETWORK_ETC if limits.network else ()):
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for file in ("passwd", "group", "hosts"):
        options += ["--ro-bind", str(scene.etc / file), f"/etc/{file}"]
    return options


@cache
def _interpreter() -> tuple[str, ...]:
    """Our own interpreter and its library at a neutral place, without installed packages: the one
    that the system has may be missing, and this one may lie in somebody's home."""
    library = Path(sysconfig.get_path("stdlib", vars=_base()))
    options = ["--ro-bind", str(_executable()), PYTHON]
    options += ["--ro-bind", str(library), f"/opt/python/lib/{library.name}"]
    if (library / "site-packages").is_dir():
        options += ["--tmpfs", f"/opt/python/lib/{library.name}/site-packages"]
    shared = _shared_library()
    if shared is not None:
        options += ["--ro-bind", str(shared), f"/opt/python/lib/{shared.name}"]
    return tuple(options)


def _base() -> dict[str, str]:
    return {"base": sys.base_prefix, "installed_base": sys.base_prefix}


def _executable() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


@cache
def _shared_library() -> Path | None:
    name = sysconfig.get_config_var("INSTSONAME") or ""
    path = Path(sysconfig.get_config_var("LIBDIR") or "/", name)
    outside = not path.is_relative_to("/usr")
    return path.resolve() if ".so" in name and outside and path.is_file() else None


def _library_path() -> dict[str, str]:
    return {"LD_LIBRARY_PATH": "/opt/python/lib"} if _shared_library() else {}


def _as_user(uid: int | None) -> list[str]:
    if uid is None:
        return []
    who = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return ["/usr/bin/setpriv", *who, "--inh-caps=-all", "--bounding-set=-all"]


def _bounds(limits: Limits) -> str:
    """Of each process; the tree is watched from outside. `-d` is a second wall behind the watch:
    it stops what takes gigabytes between two looks."""
    seconds, data = int(limits.cpu_s) + 1, 4 * limits.memory + _SPARE
    sizes = f"-f {-(-limits.file // 1024)} -d {data // 1024} -u {limits.processes + 1}"
    return (
        f"ulimit -c 0 -l 0 -q 0 -n 512 {sizes} && ulimit -St {seconds} && ulimit -Ht {seconds + 1}"
    )


@cache
def program() -> str:
    """
    Raises:
        MissingPart: bubblewrap is not installed.
    """
    found = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    if found is None:
        raise MissingPart(
            "bubblewrap is missing, so no program can be sandboxed: apt install bubblewrap"
        )
    for package, needed in (("util-linux", "setpriv"), ("bash", "bash")):
        if not Path("/usr/bin", needed).exists():
            raise MissingPart(f"/usr/bin/{needed} is missing: apt install {package}")
    return found


def readable(folders: Sequence[Path]) -> tuple[Path, ...]:
    """
    Raises:
        ProjectError: a folder that holds homes, secrets or the machine's state.
    """
    homes = [Path("/root"), Path("/home"), Path.home()]
    closed = [Path(name) for name in ("/etc", "/proc", "/sys", "/dev", "/run", "/var", "/tmp")]
    for folder in folders:
        real = folder.resolve()
        above = [one for one in (*homes, *closed) if one.is_relative_to(real)]
        home = real.parent == Path("/home")
        if above or home or not real.is_dir():
            why = "is no folder" if not real.is_dir() else "is more than a program may read"
            raise ProjectError(f"readable: {folder} {why}; name a folder of packages")
    return tuple(folder.resolve() for folder in folders)
