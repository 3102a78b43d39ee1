"""Rows of CSV or TSV, by the names of its first line. An empty cell is None; a cell that is a JSON
list or object is read as such, since messages and tools have no other way to stand in one."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flywheel.errors import BadRecord

MAX_CELL = 16 << 20
"""Characters of a cell."""


def rows(path: Path) -> Iterator[Any]:
    tab = path.suffix == ".tsv"
    csv.field_size_limit(MAX_CELL)
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        table = csv.reader(file, delimiter="\t" if tab else ",")
        names: list[str] | None = None
        while True:
            try:
                cells = next(table)
            except StopIteration:
                return
            except csv.Error as error:
                yield BadRecord(f"is no CSV: {error}")
                continue
            if names is None:
                names = cells
                yield {}
            else:
                yield _row(names, cells)


def _row(names: list[str], cells: list[str]) -> dict[str, Any] | BadRecord:
    if not cells:
        return {}
    if len(cells) != len(names):
        return BadRecord(
            f"has {len(cells)} cells under {len(names)} names: quote what holds commas"
        )
    if any("\ufffd" in cell for cell in cells):
        return BadRecord("is not UTF-8: save the file as UTF-8")
    return {name: _cell(cell) for name, cell in zip(names, cells, strict=True)}


def _cell(cell: str) -> Any:
    if cell.lstrip()[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(cell)
        except (msgspec.DecodeError, RecursionError):
            return cell
    return cell or None
