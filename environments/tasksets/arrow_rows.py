"""Rows of Parquet and Arrow files, and of a folder that Hugging Face's `datasets` saved to disk.

Read with pyarrow alone, a batch at a time: `datasets` itself is not needed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flywheel.errors import BadRecord, ProjectError

BATCH = 256
"""Rows held in memory at once."""


def parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                yield from map(_plain, batch.to_pylist())
    except (pa.ArrowException, OSError) as error:
        yield BadRecord(f"is no whole Parquet file: {error}")


def arrow(path: Path) -> Iterator[Any]:
    """`datasets` writes streams; other programs write files."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file:
            try:
                batches: Any = pa.ipc.open_stream(file)
            except pa.ArrowInvalid:
                whole = pa.ipc.open_file(file)
                batches = (whole.get_batch(number) for number in range(whole.num_record_batches))
            for batch in batches:
                for start in range(0, batch.num_rows, BATCH):
                    yield from map(_plain, batch.slice(start, BATCH).to_pylist())
    except (pa.ArrowException, OSError) as error:
        yield BadRecord(f"is no whole Arrow file: {error}")


def saved(path: Path) -> list[Path]:
    """The files of `save_to_disk`'s folder, in its own order; of a DatasetDict split by split.

    Raises:
        ProjectError: a file is missing, or rows are only chosen by an index beside them.
    """
    if (path / "dataset_dict.json").is_file():
        splits = _json(path / "dataset_dict.json").get("splits") or ()
        return [file for split in splits for file in saved(path / str(split))]
    state = _json(path / "state.json")
    if state.get("_indices_data_files"):
        raise ProjectError(
            f"{path}: save it again after flatten_indices(): its rows are an index's"
        )
    named = [Path(str(one["filename"])).name for one in state.get("_data_files") or ()]
    found = [path / name for name in named]
    for file in found:
        if not file.is_file():
            raise ProjectError(f"{file} is missing, and {path}/state.json names it: copy it too")
    return found


def _plain(row: dict[str, Any]) -> Any:
    """Times, decimals and bytes as JSON has them, so that a problem is the same once stored."""
    try:
        return msgspec.to_builtins(row, str_keys=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return BadRecord(f"holds what is no JSON: {error}")


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise ProjectError(f"{path} cannot be read: {error}") from error
