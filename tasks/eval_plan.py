"""What an evaluation is to do, settled before it begins and kept beside its log.

Enter what the person asked for. Leave the environment, its problems and a Plan. Invariant: a run
that is taken up again has the plan it was begun with, or is refused with the difference in words.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import field

from flywheel import durable
from flywheel.errors import ProjectError, UsageError
from flywheel.home import Home
from flywheel.ids import digest, new_ulid
from flywheel.project import Project, load_project
from flywheel.records import Problem, Record
from tasks.env_words import SHOWN

if TYPE_CHECKING:
    from environments.define import Environment

Split = Literal["heldout", "train", "all"]


class Plan(Record, frozen=True, kw_only=True, omit_defaults=False):
    environment: str
    """As it was asked for: a name, `file.py:Class`, a project's folder, `verifiers:NAME`."""
    name: str
    """Of the environment; problems and traces are filed under it."""
    digest: str
    """Of its source and configuration: who grades."""
    config: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    """A URL, or a deployment's name."""
    served: str = ""
    """The name that the model's server knows it by."""
    samples: int = 4
    temperature: float = 1.0
    max_tokens: int = 1024
    split: Split = "heldout"
    limit: int | None = None
    problems: str = ""
    """Digest of their ids, in order."""
    project: str = ""
    """Whose the traces are: the project's name, else the environment's."""
    folder: str = ""
    """The project's; "" = there is none."""
    key_env: str | None = None
    """Name of the variable with the server's key."""
    tokens: bool = False
    """Whether the server at the URL gives token ids."""
    pass_mark: float = 1.0
    price_input: float | None = None
    """Dollars a million tokens, as that of answers; None = not known."""
    price_output: float | None = None


FREE = ("key_env", "tokens", "pass_mark", "price_input", "price_output")
"""Fields that change no answer: a run may go on with others."""
_OPTIONS = {"samples": "--n", "max_tokens": "--max-tokens", "temperature": "--temperature"}


class Asked(NamedTuple):
    """An evaluation's environment and what it is put to."""

    name: str
    digest: str
    """Of the grader."""
    environment: "Environment | None"
    """None = it is not ours and grades by itself."""
    problems: list[Problem]
    rejects: int = 0
    """Rows of the task set that could not be read."""
    unreadable: tuple[str, ...] = ()
    """The first of these: file, line, reason."""
    project: Project | None = None
    stored: bool = False
    """The problems are the store's own."""


def absolute(path: str) -> str:
    """An environment that is named by a file or folder, so that it is found from anywhere."""
    where, colon, class_ = path.partition(":")
    return f"{Path(where).resolve()}{colon}{class_}" if where and Path(where).exists() else path


def found(path: str, config: Mapping[str, Any], folder: Path | None) -> Asked:
    """The environment that `path` names, with all its problems.

    Raises:
        UsageError: there is none, or it does not load.
    """
    from environments.load import problems_of

    environment, project = loaded(path, config, folder)
    read = problems_of(environment)
    rejects = tuple(str(one) for one in read.rejects[:SHOWN])
    return Asked(environment.name, environment.digest, environment, list(read.problems),
                 len(read.rejects), rejects, project)  # fmt: skip


def loaded(
    path: str, config: Mapping[str, Any], folder: Path | None
) -> "tuple[Environment, Project | None]":
    """An installed name, `package.module:Class`, `file.py:Class` (from here, else from the
    project's folder), or a package's folder; a project's folder, or none but `folder`, means that
    project's own.

    Raises:
        UsageError: there is none, or it does not load.
    """
    from environments.load import load_environment
    from tasks.env_build import place_of

    if (Path(path) / "flywheel.toml").is_file() and path:
        path, folder = "", Path(path)
    project = load_project(folder) if folder is not None else None
    if project is not None and not path:
        section = project.environment
        own = load_environment(section.path, project.folder, {**section.config, **config})
        return own, project
    if not path:
        raise UsageError("name an environment: `flywheel env list` has those that are installed")
    place = place_of(path)
    elsewhere = project is not None and not Path(path.partition(":")[0]).exists()
    base = project.folder if project is not None and elsewhere else place.base
    return load_environment(place.path, base, config), project


def with_stored(home: Home, asked: Asked) -> Asked:
    """With the problems that were mined from the project's traffic, where it has no task set."""
    if asked.problems or asked.project is None:
        return asked
    from storage.queries import problems

    return asked._replace(problems=problems(home, asked.name), stored=True)


def chosen(asked: Asked, split: Split, limit: int | None) -> list[Problem]:
    """The problems of one side, the same ones at any time.

    Raises:
        UsageError: there are none.
    """
    name = asked.name
    if not asked.problems:
        raise UsageError(
            f"environment {name} has no problems: it names no task set, and none were mined from "
            "traffic (`flywheel turn` does; --project says whose)"
        )
    side = [one for one in asked.problems if split in ("all", one.split)]
    if not side:
        raise UsageError(f"environment {name} has no {split} problems; --split all takes all")
    return side[:limit]


def differences(then: Plan, now: Plan) -> list[str]:
    """What another try of the same run would do otherwise, in words."""
    before, after = (msgspec.to_builtins(one) for one in (then, now))
    return [
        f"{_OPTIONS.get(name, name)}: {before[name]!r} then, {after[name]!r} now"
        for name in before
        if name not in FREE and before[name] != after[name]
    ]


# --- runs of this home


def new_run(home: Home, plan: Plan) -> Path:
    """A folder of its own with the plan in it."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", plan.name).strip("-")[:60] or "eval"
    folder = home.evals / f"{name}-{new_ulid().lower()}"
    durable.write(folder / "plan.json", msgspec.json.format(msgspec.json.encode(plan)))
    return folder


def plan_of(folder: Path) -> Plan:
    try:
        return msgspec.json.decode((folder / "plan.json").read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder} holds no evaluation: {error}") from error


def runs(home: Home) -> list[Path]:
    """All evaluations of the home, the newest first."""
    found = [path.parent for path in home.evals.glob("*/plan.json")]
    return sorted(found, key=lambda path: path.name.rpartition("-")[2], reverse=True)


def run_named(home: Home, name: str, environment: str | None) -> Path:
    """The run of that name, or the newest that is not done.

    Args:
        name: of a run, whole or its beginning; "last" = the newest that has something left to do.

    Raises:
        UsageError: there is none, or more than one.
    """
    known = runs(home)
    if name == "last":
        for folder in known:
            with contextlib.suppress(UsageError):  # what cannot be read is no run to go on with
                ours = environment in (None, plan_of(folder).environment)
                if ours and not (folder / "done").exists():
                    return folder
        raise UsageError(
            "no evaluation is left unfinished in this home: start one without --resume"
        )
    fitting = [folder for folder in known if name in (folder.name, str(folder))] or [
        folder for folder in known if folder.name.startswith(name) or folder.name.endswith(name)
    ]
    if len(fitting) != 1:
        which = ", ".join(folder.name for folder in fitting[:5]) or "`flywheel eval --list` has all"
        raise UsageError(f"{len(fitting)} evaluations are named {name!r}: {which}")
    return fitting[0]


def configuration(pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE pairs; dots in a key go deeper, a value is JSON where it is one, else text.

    Raises:
        ProjectError: a pair without a key, or a key below a value that is no table.
    """
    made: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not (sign and key):
            raise ProjectError(f"--config {pair!r} should read KEY=VALUE")
        at = made
        *above, last = key.split(".")
        for name in above:
            at = at.setdefault(name, {})
            if not isinstance(at, dict):
                raise ProjectError(f"--config {pair!r}: {name} has a value already")
        try:
            at[last] = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            at[last] = text
    return made


def problems_digest(problems: Sequence[Problem]) -> str:
    return digest([one.id for one in problems])
