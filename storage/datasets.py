"""Datasets: immutable, content-addressed folders of training rows.

Curated rows go in, a folder named by their id comes out: rows.parquet, manifest.json (parents,
rules, counts, row keys), dropped.parquet (what went, and why) and of it, for people, the first of
each rule as dropped.jsonl. The same content has the same id anywhere; a folder is published whole
by one rename, so one that is there is complete.
"""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, UsageError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import digest, digest_file
from flywheel.lineage import Dataset, Product, RuleCount
from flywheel.records import Record
from flywheel.row_files import read_rows
from flywheel.rows import TrainingRow
from storage.curate import Curated, RuleSpec
from storage.locks import held
from storage.mirror import brought, brought_dataset

SCHEMA = 1
"""Version of the folder's layout."""
DROPPED = "dropped.parquet"
"""Beside a dataset's rows: row_id, trace_id, rule, reason of every candidate that went."""
DROPPED_EXAMPLES = 200
"""Dropped rows kept a rule, as examples; the counts are in the manifest."""

RowKey = tuple[str, float | None, float]
"""What of a row decides the dataset's id: the row's id, its reward, its weight."""


class Recipe(Record, frozen=True, kw_only=True):
    """What a dataset was made of, enough to make it again."""

    turn: dict[str, Any]
    """The turn, or what stood for one: project, folder, run, and the snapshot that it saw."""
    sequence: int
    """The store's ledger up to which grades and problems were seen."""
    sections: dict[str, Any]
    """Those of the project's file that decide which rows come, and what of them is kept."""
    environment: str
    """The environment's digest: it says which words are a user's own, and what is true."""
    problems: tuple[str, ...] = ()
    """Ids of those that were chosen to be sampled on."""
    heldout: tuple[str, ...] = ()
    """Ids of every problem that was held out then."""
    store: int
    """The version of the store's tables."""
    writer: str
    """What wrote the file: another version may write the same rows as other bytes."""


class Manifest(Record, frozen=True, kw_only=True, omit_defaults=False):
    id: str
    schema_version: int
    project: str
    parents: tuple[str, ...]
    rules: tuple[RuleSpec, ...]
    counts: tuple[RuleCount, ...]
    rows: int
    content: str
    """Digest of rows.parquet."""
    keys: tuple[RowKey, ...]
    """Sorted."""
    product: Product = "rows"
    recipe: Recipe | None = None
    """None = nobody said: it cannot be made again."""


def write_dataset(
    home: Home,
    project: str,
    curated: Curated,
    *,
    parents: Sequence[str],
    rules: Sequence[RuleSpec],
    product: Product = "rows",
    recipe: Recipe | None = None,
    wait_s: float = 60.0,
) -> Dataset:
    """Publishes the dataset, or finds that it is there already and leaves it alone.

    `parents` must be content-determined (run and dataset ids are): they are part of the id.

    Raises:
        Busy: another process is writing a dataset of this project, for longer than `wait_s`.
        Full: no space; nothing is visible.
    """
    keys = tuple(curated.keys())
    manifest = Manifest(
        id="", schema_version=SCHEMA, project=project, parents=tuple(parents), rules=tuple(rules),
        counts=curated.counts, rows=len(keys), content="", keys=keys, product=product,
        recipe=recipe,
    )  # fmt: skip
    manifest = msgspec.structs.replace(manifest, id=_identity(manifest))
    final = home.datasets / project / manifest.id
    final.parent.mkdir(parents=True, exist_ok=True)
    busy = f"another process is writing a dataset of {project}; try again"
    with held(home.locks / f"dataset-{project}.lock", wait_s=wait_s, busy=busy):
        _clean(final.parent)
        if not _stands(final):
            _publish(final, manifest, curated)
        return _record(home, final, _manifest(final))


def read_dataset(home: Home, dataset: Dataset | str) -> list[TrainingRow]:
    """The rows of a dataset, given its record or its id.

    Raises:
        UsageError: there is no such dataset in this home.
        CorruptFile: its files are not what was published.
    """
    folder = _folder(home, dataset)
    manifest = _verified(folder)
    rows = read_rows(folder / "rows.parquet")
    if len(rows) != manifest.rows:
        raise CorruptFile(f"dataset {folder}: {len(rows)} rows, the manifest says {manifest.rows}")
    return rows


def manifest_of(home: Home, dataset: Dataset | str) -> Manifest:
    """What a dataset says of itself, whether or not its rows are what was published.

    Raises:
        UsageError, CorruptFile: there is none, or it cannot be read.
    """
    return _manifest(_folder(home, dataset))


def verified(home: Home, dataset: Dataset | str) -> Manifest:
    """What a dataset says of itself, once its files were found to be what was published.

    Raises:
        UsageError, CorruptFile: as `read_dataset`.
    """
    return _verified(_folder(home, dataset))


def _identity(made: Manifest) -> str:
    # Supervised rows were all that there was once: their ids are as they were then.
    apart = () if made.product == "rows" else (made.product,)
    return digest(SCHEMA, made.project, sorted(made.parents), made.rules, made.keys, *apart)


def _publish(final: Path, manifest: Manifest, curated: Curated) -> None:
    making = final.parent / f".making-{final.name}-{os.getpid()}"
    making.mkdir()
    try:
        with durable.no_space(final):
            curated.write(making / "rows.parquet")
            content = digest_file(making / "rows.parquet")
            whole = msgspec.structs.replace(manifest, content=content)
            text = msgspec.json.format(msgspec.json.encode(whole, order="deterministic"))
            (making / "manifest.json").write_bytes(text + b"\n")
            with (making / "dropped.jsonl").open("wb") as file:
                for dropped in curated.examples(DROPPED_EXAMPLES):
                    file.write(msgspec.json.encode(dropped) + b"\n")
            curated.verdicts.write_parquet(making / DROPPED, compression="zstd")
            failpoint("dataset.before_publish")
            durable.publish(making, final)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _clean(folder: Path) -> None:
    """Removes what killed writers left half made. The caller holds the project's lock."""
    for left in folder.glob(".making-*"):
        shutil.rmtree(left)


def _stands(final: Path) -> bool:
    """Whether the dataset is there and sound. One that is not is removed, to be written anew."""
    if not final.exists():
        return False
    try:
        _verified(final)
    except CorruptFile:
        shutil.rmtree(final)
        return False
    return True


def _folder(home: Home, dataset: Dataset | str) -> Path:
    if isinstance(dataset, Dataset):
        folder = home.path(dataset.path)
        if _whole(folder) or brought(home, folder) or folder.is_dir():
            return folder
        raise UsageError(f"dataset {dataset.id} is not at {folder}: curate again to write it anew")
    named = re.fullmatch("[0-9a-f]{32}", dataset)
    found = sorted(home.datasets.glob(f"*/{dataset}")) if named else []
    if named and not any(map(_whole, found)) and (came := brought_dataset(home, dataset)):
        return came
    if not found:
        raise UsageError(f"no dataset {dataset!r} under {home.datasets}")
    return found[0]


def _whole(folder: Path) -> bool:
    """Of one that is fetched from the lake the manifest comes last."""
    return (folder / "manifest.json").is_file()


def _verified(folder: Path) -> Manifest:
    manifest = _manifest(folder)
    if not manifest.id == _identity(manifest) == folder.name:
        raise CorruptFile(f"dataset {folder}: its manifest does not belong to its id")
    try:
        content = digest_file(folder / "rows.parquet")
    except OSError as error:
        raise CorruptFile(f"dataset {folder}: rows.parquet cannot be read: {error}") from error
    if content != manifest.content:
        raise CorruptFile(
            f"dataset {folder}: rows.parquet is not what was published "
            f"({content}, wanted {manifest.content}): curate again to write it anew"
        )
    return manifest


def _manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise CorruptFile(f"{path} is not a dataset's manifest: {error}") from error


def _record(home: Home, folder: Path, manifest: Manifest) -> Dataset:
    return Dataset(
        id=manifest.id,
        project=manifest.project,
        path=home.relative(folder),
        rows=manifest.rows,
        parents=manifest.parents,
        rules=manifest.counts,
        product=manifest.product,
    )
