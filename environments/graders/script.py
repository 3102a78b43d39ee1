"""A grader script: a single file with inline dependency metadata (PEP 723).

Enter: the paths that an environment names. Leave: what each needs, and a Method for each key that
it gives. Invariant: what a script gives is declared, so a trace that it cannot grade has a null for
each key; nothing of it runs here.

    # /// script
    # requires-python = ">=3.11"
    # dependencies = ["rapidfuzz"]
    # [tool.flywheel]
    # rewards = { close = 1.0 }
    # metrics = ["distance"]
    # ///

It reads one JSON object a line, {"id": 7, "answer": text, "problem": {…} or null, "trace": {…}},
and writes one line for each: the same id with a number or null for every key, or with {"error":
"why none can be given"}. stderr is its own. With `truth = false` it is also asked where no answer
is known.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from environments.marks import Mark, Method
from environments.wrong_keys import explain
from flywheel.errors import ProjectError

if TYPE_CHECKING:
    from environments.define import Environment

_BLOCK = re.compile(r"(?m)^# /// script\s*\n(?P<body>(?:^#(?:| .*)\n)+?)^# ///\s*$")


class Gives(BaseModel):
    """[tool.flywheel] of a script."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rewards: Mapping[str, float] = {}
    """Name to weight."""
    metrics: tuple[str, ...] = ()
    truth: bool = True
    """False = it does not compare with the problem's answer."""


class Needs(BaseModel):
    """The block that PEP 723 defines; other tools' tables in it are left alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    requires_python: str = Field("", alias="requires-python")
    dependencies: tuple[str, ...] = ()
    tool: Mapping[str, Any] = {}


class Script(BaseModel):
    model_config = ConfigDict(frozen=True)
    path: Path
    text: str
    needs: Needs
    gives: Gives

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.gives.rewards, *self.gives.metrics)


def scripts_of(environment: "Environment") -> list[Script]:
    """Those of the class, then those of its configuration.

    Raises:
        ProjectError: one cannot be read, or its head does not fit.
    """
    base = environment.folder or Path()
    names = dict.fromkeys((*environment.graders, *environment.config.graders))
    return [read(base / name) for name in names]


def read(path: Path) -> Script:
    """
    Raises:
        ProjectError: see `scripts_of`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"no grader can be read at {path}: {error}") from error
    found = list(_BLOCK.finditer(text))
    if len(found) != 1:
        raise ProjectError(
            f"{path} needs one `# /// script` block at its head, and has {len(found)}"
        )
    lines = found[0]["body"].splitlines()
    line = text[: found[0].start()].count("\n") + 1
    try:
        table = tomllib.loads("\n".join(one[2:] for one in lines))
    except tomllib.TOMLDecodeError as error:
        raise ProjectError(
            f"{path}:{line}: its `# /// script` block is no TOML: {error}"
        ) from error
    needs = _fitting(Needs, table, f"{path}:{line}")
    gives = _fitting(Gives, needs.tool.get("flywheel", {}), f"{path}:{line}: [tool.flywheel]")
    script = Script(path=path, text=text, needs=needs, gives=gives)
    if not script.keys or len(set(script.keys)) < len(script.keys):
        raise ProjectError(
            f"{path}:{line}: [tool.flywheel] names each key that the script gives once, under "
            f"rewards or metrics; found {list(script.keys) or 'none'}"
        )
    return script


def _fitting(model: type[Any], table: Any, where: str) -> Any:
    try:
        return model.model_validate(table)
    except ValidationError as error:
        lines = "\n".join(explain(model, error))
        raise ProjectError(f"{where} does not fit:\n{lines}") from error


def methods_of(script: Script) -> list[Method]:
    """What the environment lists for the script: a reward or metric for each key."""
    arguments = ("answer", "trace", "problem") if script.gives.truth else ("answer", "trace")
    weights = {**script.gives.rewards, **dict.fromkeys(script.gives.metrics, None)}
    return [
        Method(
            name,
            Mark("metric" if weight is None else "reward", weight or 0.0, script.gives.truth),
            arguments,
            script.path,
        )
        for name, weight in weights.items()
    ]
