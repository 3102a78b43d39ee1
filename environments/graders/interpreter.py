"""The Python that a grader script runs in: an environment of its own, built once.

Enter: what the script needs, and a folder for such environments. Leaves: the interpreter's path.
Invariant: an environment is used only when it was built to its end; scripts with the same needs
share one; the platform's own packages are in none.
"""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from environments.graders.script import Script
from flywheel.errors import MissingPart, ProjectError
from flywheel.ids import digest

BUILD_S = 600.0
"""Within which the packages must be there."""
_READY = "ready"


def interpreter(script: Script, cache: Path) -> Path:
    """
    Raises:
        ProjectError: the script wants another Python.
        MissingPart: its packages could not be installed.
    """
    from filelock import FileLock

    _fits(script)
    name = digest(sorted(script.needs.dependencies), sys.version_info[:3], platform.machine())
    folder = cache / "graders" / name
    python = folder / "bin" / "python"
    if (folder / _READY).exists() and python.exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock"), timeout=2 * BUILD_S):
        if not ((folder / _READY).exists() and python.exists()):
            shutil.rmtree(folder, ignore_errors=True)
            _build(script, folder)
            (folder / _READY).write_text("\n".join(script.needs.dependencies))
    return python


def _fits(script: Script) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    here = platform.python_version()
    try:
        wanted = SpecifierSet(script.needs.requires_python)
    except InvalidSpecifier as error:
        raise ProjectError(f"{script.path}: requires-python: {error}") from error
    if not wanted.contains(here, prereleases=True):
        raise ProjectError(f"{script.path} wants Python {wanted}; graders run on {here} here")


def _build(script: Script, folder: Path) -> None:
    _run(script, [sys.executable, "-m", "venv", "--without-pip", str(folder)])
    if not script.needs.dependencies:
        return
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-input"]
    install = (
        [uv, "pip", "install", "--python", python]
        if uv
        else [*pip, "--disable-pip-version-check", "--no-warn-script-location"]
    )
    _run(script, [*install, "--quiet", "--", *script.needs.dependencies])


def _run(script: Script, command: list[str]) -> None:
    what = f"the environment of grader {script.path}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
    except subprocess.TimeoutExpired as error:
        raise MissingPart(f"{what} was not built within {BUILD_S:g} s: {command}") from error
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
        raise MissingPart(
            f"{what} could not be built; its dependencies are {list(script.needs.dependencies)} "
            f"and must be had from the package index (is it reachable?):\n{said}"
        )
