"""Datasets without what was erased: a successor each, and a tombstone where the old one stood.

Enter datasets with rows that go; leave their successors' folders, and the records of both: the old
one retired, its files gone; the new one naming it as its parent. Invariant: the successor is whole
on the disk before the old files go, and doing it again finds it there.
"""

import dataclasses
import shutil
from collections.abc import Collection, Iterator

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset, RuleCount
from flywheel.row_files import read_batches
from flywheel.rows import TrainingRow
from storage.flagged import Touched
from storage.needles import Search

RULE = "erased"


def succeeded(
    home: Home,
    touched: Touched,
    old: Dataset,
    *,
    traces: Collection[str],
    problems: Collection[str],
    search: Search,
    why: str,
) -> tuple[Dataset, Dataset | None]:
    """The old dataset's record, retired, and its successor's; None = no row is left."""
    made = _successor(home, touched, traces, problems, search)
    told = f"{touched.rows} of {touched.of} rows were erased ({why})"
    after = f"; {made.id} is its successor" if made else "; nothing is left of it"
    return msgspec.structs.replace(old, retired=told + after, gate_report=None), made


def drop_files(home: Home, touched: Touched) -> None:
    folder = home.path(touched.path)
    if folder.is_dir():
        shutil.rmtree(folder)
        durable.sync_folder(folder.parent)


def _successor(
    home: Home,
    touched: Touched,
    traces: Collection[str],
    problems: Collection[str],
    search: Search,
) -> Dataset | None:
    from storage.curate import gathered
    from storage.datasets import verified, write_dataset

    path = home.path(touched.path) / "rows.parquet"
    try:
        manifest = verified(home, touched.id)
    except (UsageError, CorruptFile):
        return None  # nobody could train on it either
    left = manifest.rows - touched.rows
    if left <= 0:
        return None

    def staying() -> Iterator[TrainingRow]:
        for batch in read_batches(path):
            held = {at for at, _ in search.hits([msgspec.json.encode(row) for row in batch])}
            for at, row in enumerate(batch):
                if row.trace_id not in traces and row.problem_id not in problems and at not in held:
                    yield row

    count = RuleCount(rule=RULE, rows_in=manifest.rows, rows_out=left)
    curated = gathered(staying(), count)
    rows = len(curated.keys())
    if not rows:
        return None
    counts = (*manifest.counts, msgspec.structs.replace(count, rows_out=rows))
    return write_dataset(
        home,
        manifest.project,
        dataclasses.replace(curated, counts=counts),
        parents=(manifest.id,),
        rules=manifest.rules,
        product=manifest.product,
    )


def close_turns(home: Home, retired: set[str]) -> None:
    """A turn that would train on a retired dataset does not go on: the next one begins anew."""
    for path in home.turns.glob("*.json"):
        try:
            run = msgspec.json.decode(path.read_bytes(), type=dict)["run_id"]
            made = msgspec.json.decode((home.runs / run / "dataset.json").read_bytes(), type=dict)
        except (OSError, KeyError, msgspec.DecodeError):
            continue  # it has no dataset yet, and will find what there is then
        if made.get("dataset") in retired:
            path.unlink(missing_ok=True)
