"""Loads an environment by path: `environment.py:Support`, relative to the project's folder.

Enter: that path and the configuration. Leaves: the environment. Invariant: neither sys.path nor
sys.modules is changed afterwards, so two projects may each have an `environment.py`.
"""

import difflib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from environments.define import Environment
from flywheel.errors import ProjectError
from flywheel.ids import digest


def load_environment(path: str, base: Path, config: Mapping[str, Any] | None = None) -> Environment:
    """The environment of class `path` ("file.py:Class") in the folder `base`.

    Raises:
        ProjectError: no such file or class, a file that does not run, a config that does not fit.
    """
    name, colon, wanted = path.partition(":")
    if not (colon and name and wanted):
        raise ProjectError(f"environment path {path!r} should read `file.py:Class`")
    file = base / name
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"no environment can be read at {file}: {error}") from error
    module = _execute(file, source)
    found = getattr(module, wanted, None)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ProjectError(_no_class(file, wanted, module))
    environment = found(config)
    environment.source, environment.folder = source, base
    _ = environment.methods
    return environment


def _execute(file: Path, source: str) -> ModuleType:
    """Runs the file as a module that sys.modules knows only meanwhile: dataclasses, msgspec and
    pydantic look their own module up there while a class is made."""
    module = ModuleType(f"environment_{digest(str(file), source)[:12]}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        message = f"environment {file} does not run: {type(error).__name__}: {error} ({where})"
        raise ProjectError(message) from error
    finally:
        sys.modules.pop(module.__name__, None)
    return module


def _no_class(file: Path, wanted: str, module: ModuleType) -> str:
    known = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    ]
    near = difflib.get_close_matches(wanted, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"environments in it: {known or 'none'}"
    return f"{file} has no Environment class {wanted!r}; {hint}"
