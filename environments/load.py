"""Finds an environment: by file, by package, or by the name that a package gave it.

Enter: `environment.py:Support` (relative to the project's folder), `package.module:Class`, or a
name of the entry-point group `flywheel.environments` (`math`); and the configuration. Leaves: the
environment, its methods checked. Invariant: a file leaves neither sys.path nor sys.modules changed,
so two projects may each have an `environment.py`; nor does it move this process elsewhere.
"""

import contextlib
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from environments.define import Environment
from environments.neighbours import neighbours
from environments.tasksets.contract import Read
from environments.wrong_keys import nearest
from flywheel.errors import FlywheelError, ProjectError
from flywheel.ids import digest
from flywheel.records import Problem

GROUP = "flywheel.environments"


def load_environment(path: str, base: Path, config: Mapping[str, Any] | None = None) -> Environment:
    """The environment that `path` names; files are looked for in the folder `base`.

    Raises:
        ProjectError: no such file, package, name or class, code that does not run, a config that
            does not fit.
    """
    where, colon, wanted = path.partition(":")
    if not colon and not where.endswith(".py"):
        return _named(where, config)
    if not (where and wanted):
        raise ProjectError(
            f"environment path {path!r} should read `file.py:Class`, `package.module:Class`, or a "
            f"name that is installed ({', '.join(installed()) or 'none is'})"
        )
    if where.endswith(".py"):
        return _from_file(base / where, wanted, config)
    return _from_package(where, wanted, config)


def installed() -> dict[str, str]:
    """The names that installed packages gave environments, each with its `package.module:Class`."""
    return {one.name: one.value for one in sorted(entry_points(group=GROUP))}


def _named(name: str, config: Mapping[str, Any] | None) -> Environment:
    known = installed()
    if name not in known:
        raise ProjectError(
            f"no environment named {name!r} is installed; {nearest(name, list(known))} "
            "(a file is named `file.py:Class`)"
        )
    module, _, wanted = known[name].partition(":")
    return _from_package(module, wanted, config)


def _from_file(file: Path, wanted: str, config: Mapping[str, Any] | None) -> Environment:
    if file.exists() and not file.is_file():
        raise ProjectError(f"no environment can be read at {file}: it is no file")
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"no environment can be read at {file}: {error}") from error
    module, beside = _execute(file, source)
    whole = "\n".join([source, *(f"# {name}.py\n{beside[name]}" for name in sorted(beside))])
    return _made(module, str(file), wanted, config, whole, file.parent)


def _from_package(name: str, wanted: str, config: Mapping[str, Any] | None) -> Environment:
    try:
        with _staying():
            module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ProjectError(_does_not_run(name, error)) from error
    file = Path(module.__file__ or name)
    return _made(module, name, wanted, config, _sources(module, file), file.parent)


def _sources(module: ModuleType, file: Path) -> str:
    """The text of the module, with that of its siblings where it lies in a package: they grade
    too, and a changed one makes another grader."""
    files = sorted(file.parent.glob("*.py")) if module.__package__ else [file]
    return "\n".join(f"# {one.name}\n{one.read_text(encoding='utf-8')}" for one in files)


def _made(
    module: ModuleType,
    where: str,
    wanted: str,
    config: Mapping[str, Any] | None,
    source: str,
    folder: Path,
) -> Environment:
    found = getattr(module, wanted, None)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ProjectError(_no_class(where, wanted, module))
    try:
        environment = found(config)
        environment.source, environment.folder = source, folder
        _ = environment.methods
    except FlywheelError:
        raise
    except (Exception, SystemExit) as error:
        raise ProjectError(_does_not_run(where, error)) from error
    return environment


def problems_of(environment: Environment) -> Read:
    """All problems of the environment, read; its hooks may be anybody's code.

    Raises:
        ProjectError: there is no such task set, or a hook fails.
    """
    where = f"{environment.name}, asked for its problems,"
    try:
        read = environment.problems()
        problems = list(read.problems)
        if not all(isinstance(one, Problem) for one in problems):
            raise TypeError("`problems` gave what is no Problem")
        return read._replace(problems=problems)
    except FlywheelError:
        raise
    except (Exception, SystemExit) as error:
        raise ProjectError(_does_not_run(where, error)) from error


def _execute(file: Path, source: str) -> tuple[ModuleType, dict[str, str]]:
    """Runs the file as a module that sys.modules knows only meanwhile: dataclasses, msgspec and
    pydantic look their own module up there while a class is made. Leaves it, and the texts of the
    files beside it that it imported."""
    module = ModuleType(f"environment_{digest(str(file), source)[:12]}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        with _staying(), neighbours(file.absolute().parent) as beside:
            exec(compile(source, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ProjectError(_does_not_run(str(file), error)) from error
    finally:
        sys.modules.pop(module.__name__, None)
    return module, beside


@contextlib.contextmanager
def _staying() -> Iterator[None]:
    """What runs here may go to another folder; relative paths of ours mean what they meant."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def _does_not_run(name: str, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = next((one for one in reversed(frames) if "importlib" not in one.filename), frames[-1])
    where = f"{last.filename}:{last.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    return f"environment {name} does not run: {type(error).__name__}: {error} ({where})"


def _no_class(where: str, wanted: str, module: ModuleType) -> str:
    known = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    ]
    near = difflib.get_close_matches(wanted, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"environments in it: {known or 'none'}"
    return f"{where} has no Environment class {wanted!r}; {hint}"
