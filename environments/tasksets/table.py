"""The readers of task sets, by kind; one file each beside this one.

`auto` takes the first kind that recognises the path or its first row; plain rows come last.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from environments.tasksets import (
    bfcl,
    fields,
    gsm8k,
    harbor,
    humaneval,
    nemo_gym,
    reasoning_gym,
    tau2,
)
from environments.tasksets.contract import Given, Options, Read, Reader, Source, TaskSet
from environments.tasksets.rows import sample, shaped
from environments.tasksets.settle import settle
from flywheel.errors import ProjectError, unfit

if TYPE_CHECKING:
    from environments.define import Environment


def _plain(*suffixes: str, container: str | None = None) -> Reader:
    """Rows of plain fields out of files named so."""

    def recognises(path: Path, row: Mapping[str, Any] | None) -> bool:
        return row is not None and path.suffix in suffixes

    return Reader(fields.Fields, recognises, shaped(fields.fit, container))


def _saved(path: Path, _: Mapping[str, Any] | None) -> bool:
    return path.is_dir() or path.suffix == ".arrow"


READERS: dict[str, Reader] = {
    "harbor": harbor.READER,
    "reasoning_gym": reasoning_gym.READER,
    "nemo_gym": nemo_gym.READER,
    "bfcl": bfcl.READER,
    "tau2": tau2.READER,
    "humaneval": humaneval.READER,
    "gsm8k": gsm8k.READER,
    "jsonl": _plain(".jsonl", ".ndjson", ".json", container=".jsonl"),
    "csv": _plain(".csv", ".tsv", container=".csv"),
    "parquet": _plain(".parquet", container=".parquet"),
    "datasets": Reader(fields.Fields, _saved, shaped(fields.fit)),
}


MADE = "made"
"""The kind of a set that the environment makes itself (`Environment.made`)."""


def read(environment: "Environment") -> Read:
    """The problems of the environment's task set; none where it has none.

    Raises:
        ProjectError: the set cannot be found, its kind is not known, or its options do not fit.
    """
    tasks = environment.tasks
    if tasks is None:
        return Read((), [])
    if tasks.kind == MADE:
        return settle(map(Given, environment.made(tasks)), environment, tasks, Options())
    path = (environment.folder or Path()) / Path(tasks.path).expanduser()
    kind = tasks.kind if tasks.kind != "auto" else kind_of(path, tasks)
    if kind not in READERS:
        kinds = [*READERS, MADE]
        near = difflib.get_close_matches(kind, kinds, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(kinds)}"
        raise ProjectError(f"environment {environment.name}: no task set of kind {kind!r}; {hint}")
    reader = READERS[kind]
    options = _options(reader, kind, tasks)
    drawn = reader.read(Source(environment, tasks, path, options))
    return settle(drawn, environment, tasks, options)


def kind_of(path: Path, tasks: TaskSet) -> str:
    """
    Raises:
        ProjectError: nothing is there, or nothing that a reader knows.
    """
    if not tasks.path:
        raise ProjectError("a task set of kind `auto` needs a path; generators name their kind")
    if not path.exists():
        raise ProjectError(f"no task set at {path} (tasks.path)")
    row = None if harbor.recognises(path, None) else sample(path)
    found = next((kind for kind, one in READERS.items() if one.recognises(path, row)), None)
    if found is None:
        known = ", ".join(READERS)
        raise ProjectError(f"{path} is no task set that is known: name its kind, one of {known}")
    return found


def _options(reader: Reader, kind: str, tasks: TaskSet) -> Options:
    try:
        return reader.options.model_validate(dict(tasks.options))
    except ValidationError as error:
        known = sorted(reader.options.model_fields)
        told = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"])
            near = difflib.get_close_matches(key, known, n=1)
            unknown = f"unknown; did you mean {near[0]!r}?" if near else f"unknown; known: {known}"
            told.append(f"{key}: {unknown if item['type'] == 'extra_forbidden' else unfit(item)}")
        raise ProjectError(f"options of task set {kind}: {'; '.join(told)}") from error
