"""An environment as a package to share, and where one lies that is named by its folder.

Enter a folder with a pyproject.toml that names its environment in the entry-point group. Leave a
wheel and a source archive. Invariant: what is built holds the problems that the environment names,
or is not built, and what was built before stays; nothing is downloaded.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from environments.load import GROUP
from flywheel.errors import ProjectError, UsageError

_BACKEND = "setuptools.build_meta"
_BUILD = (
    "import sys; out = sys.argv[1]; from setuptools import build_meta as b; "
    "made = b.build_sdist(out), b.build_wheel(out); print(); print(*made)"
)
_NOT_OURS = shutil.ignore_patterns("dist", "build", "*.egg-info", "__pycache__", ".*")


class Place(NamedTuple):
    """Where an environment is loaded from."""

    path: str
    base: Path


class Built(NamedTuple):
    wheel: Path
    archive: Path
    names: tuple[str, ...]
    """Of the environments in it."""


def place_of(name: str) -> Place:
    """A folder's environment by its entry point, its package importable from there; anything else
    as it is.

    Raises:
        UsageError: a folder without an environment, or with several.
    """
    folder = Path(name)
    if not folder.is_dir():
        return Place(name, Path())
    if not (folder / "pyproject.toml").is_file() and (folder / "environment.py").is_file():
        raise UsageError(f"{folder} has no pyproject.toml: name {folder}/environment.py:CLASS")
    known = declared(folder)
    if len(known) != 1:
        raise UsageError(f"{folder} declares {len(known)} environments ({', '.join(known)}): "
                         "name one as package.module:Class")  # fmt: skip
    for place in (folder / "src", folder):
        if place.is_dir() and str(place.resolve()) not in sys.path:
            sys.path.insert(0, str(place.resolve()))
    return Place(next(iter(known.values())), folder)


def declared(folder: Path) -> dict[str, str]:
    """Names of the environments that the folder's pyproject.toml declares, with where they are.

    Raises:
        UsageError: no such file, or none in it.
    """
    file = folder / "pyproject.toml"
    try:
        known: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"no environment's package at {folder}: {file}: {error}") from error
    for key in ("project", "entry-points", GROUP):
        known = known.get(key) if isinstance(known, dict) else None
    if not (isinstance(known, dict) and known):
        raise UsageError(
            f'{file} declares no environment: [project.entry-points."{GROUP}"] with '
            'NAME = "package.module:Class"'
        )
    return {str(name): str(value) for name, value in known.items()}


def build(folder: Path) -> Built:
    """
    Raises:
        UsageError: it is no package of an environment, or another backend builds it.
        ProjectError: it cannot be built, or its problems would be missing.
    """
    names = declared(folder)
    text = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    backend = text.get("build-system", {}).get("build-backend", _BACKEND)
    if backend != _BACKEND:
        raise UsageError(f"{folder} is built by {backend}: this command builds with {_BACKEND}")
    with tempfile.TemporaryDirectory(prefix="flywheel-build-") as place:
        source = shutil.copytree(folder, Path(place) / "source", ignore=_NOT_OURS)
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, place],
            cwd=source, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        if done.returncode != 0:
            raise ProjectError(f"{folder} cannot be built: {done.stderr.strip()[-1500:]}")
        archive, wheel = (Path(place) / one for one in done.stdout.split()[-2:])
        _whole(wheel, names, folder)
        out = folder / "dist"
        out.mkdir(exist_ok=True)
        placed = [_placed(one, out) for one in (wheel, archive)]
    return Built(placed[0], placed[1], tuple(names))


def _placed(made: Path, out: Path) -> Path:
    """Where one of that name lies, it is replaced at once or not at all."""
    beside = shutil.copyfile(made, out / f".{made.name}.new")
    return beside.replace(out / made.name)


def _whole(wheel: Path, names: dict[str, str], folder: Path) -> None:
    """The wheel, loaded from itself, has its problems."""
    with zipfile.ZipFile(wheel) as file:
        inside = set(file.namelist())
    for name, value in names.items():
        module = value.partition(":")[0].replace(".", "/")
        if not {f"{module}.py", f"{module}/__init__.py"} & inside:
            raise ProjectError(f"{name}: the wheel lacks {module}.py: [tool.setuptools] packages")
    missing = _missing(wheel, names)
    gone = [
        one for one in missing if not any((at / one).exists() for at in (folder, folder / "src"))
    ]
    if gone:
        raise ProjectError(f"{', '.join(str(folder / one) for one in gone)}: no such task set; "
                           "`tasks` names it")  # fmt: skip
    if missing:
        raise ProjectError(
            f"the wheel lacks {', '.join(missing)}: [tool.setuptools.package-data] puts it in"
        )


def _missing(wheel: Path, names: dict[str, str]) -> list[str]:
    """Task sets that the environments name and the unpacked wheel does not hold: from its top."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom environments.load import load_environment\n"
        "for path in sys.argv[1:]:\n"
        "    one = load_environment(path, Path())\n"
        "    if one.tasks and one.tasks.path and not (one.folder / one.tasks.path).exists():\n"
        "        print((one.folder / one.tasks.path).resolve().relative_to(Path().resolve()))\n"
    )
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(place)
        done = subprocess.run(
            [sys.executable, "-c", code, *names.values()],
            cwd=place,
            env={"PYTHONPATH": ":".join([place, *filter(None, sys.path)])},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    if done.returncode != 0:
        raise ProjectError(f"what was built does not load: {done.stderr.strip()[-800:]}")
    return done.stdout.split("\n")[:-1]
