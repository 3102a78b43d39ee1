"""What passes between the orchestrator's process and the trainer's: files in the run's folder.

`batches/step-N.batch` is the batch of optimizer step N, put by one rename before step N may begin;
`batches/end` ends a run before its last step;
`versions/vN/` are the weights after step N (`adapter/` or `model/`, and probe.json), published by
one rename; v0 are the weights that the run starts from, and has no folder. Either side may be
killed at any moment: what is there is whole, and says how far both are.
"""

import re
import shutil
from pathlib import Path

import msgspec

from flywheel.durable import write
from flywheel.errors import BadRecord, CorruptFile
from trainer.samples import Sample


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    """From 1: the optimizer step that trains it."""
    groups: tuple[str, ...]
    """Ids of the groups in it, oldest first."""
    samples: tuple[Sample, ...]
    report: dict[str, float | None] = {}
    """What the orchestrator measured for this step, for metrics.jsonl: reward, staleness, dropped
    share, idle share, lengths. None = not known."""


def batch_path(folder: Path, step: int) -> Path:
    return folder / "batches" / f"step-{step:06d}.batch"


def put_batch(folder: Path, batch: Batch) -> None:
    """Atomic and durable; the same step again replaces it."""
    path = batch_path(folder, batch.step)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, msgspec.msgpack.encode(batch))


def take_batch(folder: Path, step: int) -> Batch | None:
    """None = it has not been put yet.

    Raises:
        CorruptFile: it is not what was put.
    """
    path = batch_path(folder, step)
    try:
        batch = msgspec.msgpack.decode(path.read_bytes(), type=Batch)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, BadRecord) as error:
        raise CorruptFile(f"{path} is not a batch: {error}") from error
    if batch.step != step:
        raise CorruptFile(f"{path} is the batch of step {batch.step}")
    return batch


def drop_batches(folder: Path, *, up_to: int) -> None:
    """Batches that are trained and that no resumed trainer can ask for again."""
    for path in (folder / "batches").glob("step-*.batch"):
        match = re.fullmatch(r"step-(\d{6,})\.batch", path.name)
        if match and int(match[1]) <= up_to:
            path.unlink(missing_ok=True)


def end(folder: Path, after: int) -> None:
    """No batch follows that of step `after`: the trainer ends the run when it has trained it."""
    write(folder / "batches" / "end", b"%d" % after)


def ended(folder: Path) -> int | None:
    """The last step that has a batch. None = not said: as many as the settings say."""
    path = folder / "batches" / "end"
    try:
        return int(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptFile(f"{path} does not say a step: {error}") from error


def version_folder(folder: Path, version: int) -> Path:
    return folder / "versions" / f"v{version:06d}"


def versions(folder: Path) -> list[int]:
    """Those whose weights are there, ascending."""
    found = (re.fullmatch(r"v(\d{6,})", path.name) for path in (folder / "versions").glob("v*"))
    return sorted(int(match[1]) for match in found if match)


def drop_version(folder: Path, version: int) -> None:
    """Its weights go; what was made of them stays."""
    shutil.rmtree(version_folder(folder, version), ignore_errors=True)
