"""Exports: a dataset written in somebody else's layout, with its card.

Enter a dataset and a layout's name; leaves a folder that is there whole or not at all: the data,
README.md (the card), and what the layout has beside them. Rows stream past, a batch at a time.
Invariant: every row is in the data, or counted with the reason why the layout cannot hold it.
"""

import glob
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from flywheel import durable
from flywheel.errors import BadRecord, UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset
from flywheel.progress import report
from flywheel.records import Record
from flywheel.row_files import read_batches
from flywheel.rows import TrainingRow
from storage.dataset_rows import sorted_pairs
from storage.datasets import verified
from storage.exports import LAYOUTS
from storage.exports.card import card
from storage.exports.layout import Item, Kind, Layout

_BATCH = 2000
_MAKING = ".making-"
"""Before the number of the process."""


class Exported(Record, frozen=True, kw_only=True):
    dataset: str
    layout: str
    folder: str
    files: tuple[str, ...]
    """Within the folder."""
    items: int
    """Lines of the data: answers, pairs or problems."""
    left_out: dict[str, int]
    """Why -> rows, or pairs, that the layout cannot hold."""


def export(home: Home, dataset: Dataset, layout: str, out: Path) -> Exported:
    """Writes `dataset` to the folder `out`.

    Raises:
        UsageError: the layout does not exist or has no place for such a dataset, or `out` is taken.
        CorruptFile: the dataset's files are not what was published.
        Full: no space; nothing is left there.
    """
    verified(home, dataset)
    form, kind = LAYOUTS[layout], kind_of(home, dataset)
    if not form.copied and kind not in form.shapes:
        able = ", ".join(name for name, one in LAYOUTS.items() if one.copied or kind in one.shapes)
        raise UsageError(f"{layout} has no place for {_NAMES[kind]}; {able} have")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already and is not empty: name another folder with --out")
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    _clean(out)
    making = out.parent / f".{out.name}{_MAKING}{os.getpid()}"
    making.mkdir()
    left: Counter[str] = Counter()
    try:
        with durable.no_space(out):
            items = _write(home, dataset, form, kind, making, left)
            for name, text in form.beside(kind).items():
                (making / name).write_text(text, encoding="utf-8")
            told = dict(left.most_common())
            about = card(home, dataset, layout, form, items, told)
            (making / "README.md").write_text(about, encoding="utf-8")
            if out.is_dir():
                out.rmdir()
            durable.publish(making, out)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    return Exported(
        dataset=dataset.id, layout=layout, folder=str(out), files=tuple(files), items=items,
        left_out=told,
    )  # fmt: skip


def _clean(out: Path) -> None:
    """Removes what exports to the same folder left that were killed."""
    for left in out.parent.glob(f".{glob.escape(out.name)}{_MAKING}*"):
        number = left.name.rpartition("-")[2]
        if re.fullmatch("[0-9]{1,9}", number) and not _alive(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    """Whether it is another one that lives."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid()


_NAMES: dict[Kind, str] = {
    "answer": "answers", "pair": "pairs of answers", "problem": "problems without an answer",
}  # fmt: skip


def kind_of(home: Home, dataset: Dataset) -> Kind:
    """What its rows are. Preferences are pairs, or labelled answers that stand alone."""
    import polars as pl

    if dataset.product in ("problems", "evaluation"):
        return "problem"
    if dataset.product != "preferences":
        return "answer"
    file = home.path(dataset.path) / "rows.parquet"
    paired = (
        pl.scan_parquet(file, glob=False)
        .select(pl.col("pair_id").is_not_null().all())
        .collect()
        .item()
    )
    return "pair" if paired else "answer"


def _write(
    home: Home, dataset: Dataset, form: Layout, kind: Kind, making: Path, left: Counter[str]
) -> int:
    data = making / form.file
    data.parent.mkdir(parents=True, exist_ok=True)
    rows = home.path(dataset.path) / "rows.parquet"
    if form.copied:
        shutil.copyfile(rows, data)
        return dataset.rows
    units = _pairs(home, dataset, making, left) if kind == "pair" else _rows(rows, dataset.rows)
    batches = _shaped(units, form.shapes[kind], left)
    if form.schema is None:
        return _write_lines(data, batches)
    return _write_parquet(data, batches, form.schema(kind))


Units = Iterator[list[tuple[TrainingRow, ...]]]


def _rows(path: Path, total: int) -> Units:
    done = 0
    for batch in read_batches(path, _BATCH):
        report("export", done, total)
        yield [(row,) for row in batch]
        done += len(batch)
    report("export", done, total)


def _pairs(home: Home, dataset: Dataset, making: Path, left: Counter[str]) -> Units:
    """Each chosen answer with the rejected one of its pair."""
    ordered = making / ".pairs.parquet"
    sorted_pairs(home, dataset, ordered)
    waiting: TrainingRow | None = None
    done = pairs = 0
    for batch in read_batches(ordered, _BATCH):
        report("export", done, dataset.rows)
        found: list[tuple[TrainingRow, ...]] = []
        for row in batch:
            if row.label == "rejected" and waiting is not None and waiting.pair_id == row.pair_id:
                found.append((waiting, row))
            waiting = row if row.label == "chosen" else None
        done, pairs = done + len(batch), pairs + len(found)
        yield found
    if alone := done - 2 * pairs:
        left["the other answer of its pair is not there"] += alone
    ordered.unlink()


def _shaped(units: Units, shape: Callable[..., Item], left: Counter[str]) -> Iterator[list[Item]]:
    for batch in units:
        made = []
        for unit in batch:
            try:
                made.append(shape(*unit))
            except BadRecord as error:
                left[error.reason] += 1
        yield made


def _write_lines(path: Path, batches: Iterator[list[Item]]) -> int:
    count = 0
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for batch in batches:
            file.write(encoder.encode_lines(batch))
            count += len(batch)
    return count


def _write_parquet(path: Path, batches: Iterator[list[Item]], schema: Any) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_pylist(batch, schema))
            count += len(batch)
    return count
