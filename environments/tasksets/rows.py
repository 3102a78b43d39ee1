"""Rows of a file or a folder of files, whatever container they lie in.

Enter: a path. Leave: rows with their place, and what is no row. Invariant: a bad row stops no
other; a line, a file and a set are bounded.
"""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from environments.tasksets import arrow_rows, csv_rows, json_rows
from environments.tasksets.contract import Drawn, Given, Side, Source
from flywheel.errors import BadRecord, ProjectError
from flywheel.records import Problem

MAX_ROWS = 1_000_000
"""Of a set; what follows is told once and left."""
CONTAINERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": json_rows.lines,
    ".ndjson": json_rows.lines,
    ".json": json_rows.lines_or_array,
    ".csv": csv_rows.rows,
    ".tsv": csv_rows.rows,
    ".parquet": arrow_rows.parquet,
    ".arrow": arrow_rows.arrow,
}
SIDES: dict[str, Side] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("heldout", "held_out", "test", "testing", "eval", "evaluation"), "heldout"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "heldout"),
}
"""The names that a split goes by."""
_decoder = msgspec.msgpack.Decoder(Problem)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


class Row(NamedTuple):
    path: Path
    line: int
    """Of a file of lines; elsewhere the row's number, from 1."""
    value: dict[str, Any]
    side: Side | None
    """What the file's name says: train.jsonl, test-00000-of-00001.parquet, test/data.arrow."""


def rows(path: Path, container: str | None = None) -> Iterator[Row | BadRecord]:
    """
    Args:
        container: a key of `CONTAINERS`, for a file whose name does not say it.

    Raises:
        ProjectError: there is no such file, or none that this can read.
    """
    number = 0
    for file in files(path, container):
        read = CONTAINERS[file.suffix if file.suffix in CONTAINERS else container or ".jsonl"]
        side = _side(file, path)
        for line, value in enumerate(read(file), 1):
            if number >= MAX_ROWS:
                yield BadRecord(
                    f"more than {MAX_ROWS:,} rows: the rest is not read", path=f"{file}"
                )
                return
            number += 1
            if isinstance(value, BadRecord):
                yield BadRecord(value.reason, path=str(file), line=line, field=value.field)
            elif not isinstance(value, dict):
                reason = f"is {type(value).__name__}, not an object: one problem a row"
                yield BadRecord(reason, path=str(file), line=line)
            elif value:
                yield Row(file, line, value, side)


def files(path: Path, container: str | None = None) -> list[Path]:
    """The files of a path that hold rows, in the order of their names."""
    if path.is_file():
        if container is None and path.suffix not in CONTAINERS:
            known = ", ".join(CONTAINERS)
            raise ProjectError(f'{path}: not one of {known}; name its kind (`kind = "jsonl"`)')
        return [path]
    if not path.is_dir():
        raise ProjectError(f"no task set at {path}: give a file or a folder (tasks.path)")
    suffixes = (container,) if container else tuple(CONTAINERS)
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        found = arrow_rows.saved(path)
    else:
        found = sorted(one for one in path.rglob("*") if one.suffix in suffixes and one.is_file())
    if not found:
        raise ProjectError(f"{path} holds no rows: looked for {', '.join(suffixes)}")
    return found


def sample(path: Path) -> dict[str, Any] | None:
    """The first row that is one, to recognise a set by; None = there is none among the first."""
    try:
        found = list(islice(rows(path), 20))
    except ProjectError:
        return None
    return next((row.value for row in found if isinstance(row, Row)), None)


def shaped(
    fit: Callable[[Row, Source], Given], container: str | None = None
) -> Callable[[Source], Drawn]:
    """A reader of rows of one shape, out of any container or the one named."""

    def read(source: Source) -> Drawn:
        for row in rows(source.path, container):
            if isinstance(row, BadRecord):
                yield row
                continue
            try:
                yield storable(fit(row, source))
            except BadRecord as bad:
                yield BadRecord(bad.reason, path=str(row.path), line=row.line, field=bad.field)

    return read


def storable(given: Given) -> Given:
    """As it comes out of the store again.

    Raises:
        BadRecord: it holds what no record can keep.
    """
    try:
        kept = _decoder.decode(msgspec.msgpack.encode(given.problem))
    except (msgspec.MsgspecError, OverflowError, TypeError, ValueError, RecursionError) as error:
        raise BadRecord(f"holds what cannot be stored: {error}; write it as text") from error
    return given._replace(problem=kept)


def side_named(value: Any, field: str = "split") -> Side | None:
    """The side that a row's split names; None where it names none.

    Raises:
        BadRecord: a split that is not known.
    """
    if value is None or value == "":
        return None
    side = SIDES.get(value.strip().lower()) if isinstance(value, str) else None
    if side is None:
        raise BadRecord(f"is {str(value)[:40]!r}: name it one of {', '.join(SIDES)}", field=field)
    return side


def _side(file: Path, path: Path) -> Side | None:
    if file == path:
        return SIDES.get(_SHARD.sub("", file.stem).lower())
    inner = file.relative_to(path)
    names = (_SHARD.sub("", inner.stem), *reversed(inner.parts[:-1]))
    return next((SIDES[name.lower()] for name in names if name.lower() in SIDES), None)
