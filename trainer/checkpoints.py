"""Checkpoints of a run under way: what learns, optimizer, random state, cursor; whole or not there.

`step-N/` appears by one rename, with a digest of each file. Resuming takes the newest whole one; a
damaged one is set aside under another name, with a warning, and the one before it is used. What is
loaded is bit for bit what was saved.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from flywheel.durable import no_space, publish
from flywheel.errors import CorruptFile, UsageError

KEPT = 2
"""The newest, and the one before it in case the newest is damaged."""

_log = logging.getLogger("flywheel.trainer")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is: its cursor and its sums."""

    job: str
    """Digest of the job that it belongs to."""
    step: int = 0
    """Optimizer steps done; the data cursor, since a feed's samples are a function of the step."""
    first_loss: float | None = None
    """None = no step done."""
    last_loss: float | None = None
    samples: int = 0
    """Trained, each time counted. 0 in files of older homes."""
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    progress: Progress
    weights: dict[str, torch.Tensor]
    """What learns, by the model's parameter names."""
    optimizer: dict[str, torch.Tensor]
    """`<parameter's index>.<what>`, as in the optimizer's state_dict."""
    random: torch.Tensor
    """torch's CPU generator."""
    average: dict[str, torch.Tensor] | None = None
    """Moving average of `weights`, by the same names. None = none is kept."""


class _Manifest(msgspec.Struct, frozen=True):
    files: dict[str, str]
    """Name -> digest of its bytes."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Publishes `folder`/step-N and prunes what is older than the last `KEPT`.

    Raises:
        Full: no room; what was there before is as it was.
    """
    final = folder / f"step-{checkpoint.progress.step}"
    temporary = folder / f".{final.name}.tmp"
    tensors = {
        "weights.safetensors": checkpoint.weights,
        "optimizer.safetensors": {**checkpoint.optimizer, "random": checkpoint.random},
    }
    if checkpoint.average is not None:
        tensors["average.safetensors"] = checkpoint.average
    with no_space(final), fresh(temporary):
        for name, content in tensors.items():
            save_file(content, temporary / name)
        (temporary / "progress.json").write_bytes(msgspec.json.encode(checkpoint.progress))
        manifest = _Manifest({path.name: _digest(path) for path in temporary.iterdir()})
        (temporary / "manifest.json").write_bytes(msgspec.json.encode(manifest))
        publish(temporary, final)
    for _, old in _steps(folder)[:-KEPT]:
        shutil.rmtree(old)
    return final


@contextlib.contextmanager
def fresh(temporary: Path) -> Iterator[None]:
    """The folder is there, empty; what could not be finished is gone, so that it fills no disk."""
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def newest_checkpoint(folder: Path, job: str) -> Path | None:
    """The newest whole checkpoint; None where there is none, so the run starts at its beginning.

    Raises:
        UsageError: it belongs to another job than `job`.
    """
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    for _, path in reversed(_steps(folder)):
        try:
            progress = _whole_progress(path)
        except CorruptFile as error:
            aside = _free_name(path)
            path.rename(aside)
            _log.warning("%s; set aside as %s, going back to the one before", error, aside.name)
            continue
        if progress.job != job:
            raise UsageError(
                f"{path} belongs to another job: use another run id, or remove {folder.parent}"
            )
        return path
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads one `step-N`.

    Raises:
        CorruptFile: a file is missing, or is not what was written.
    """
    progress = _whole_progress(path)
    try:
        optimizer = load_file(path / "optimizer.safetensors")
        average = path / "average.safetensors"
        return Checkpoint(
            progress=progress,
            weights=load_file(path / "weights.safetensors"),
            random=optimizer.pop("random"),
            optimizer=optimizer,
            average=load_file(average) if average.exists() else None,
        )
    except (OSError, KeyError, SafetensorError) as error:
        raise CorruptFile(f"checkpoint {path} is damaged: {error}") from error


def _whole_progress(path: Path) -> Progress:
    """How far the checkpoint is, all of whose files are as they were written.

    Raises:
        CorruptFile: they are not.
    """
    try:
        manifest = msgspec.json.decode((path / "manifest.json").read_bytes(), type=_Manifest)
        for name, written in manifest.files.items():
            if _digest(path / name) != written:
                raise CorruptFile(f"checkpoint {path} is damaged: {name} is not what was written")
        return msgspec.json.decode((path / "progress.json").read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError) as error:
        raise CorruptFile(f"checkpoint {path} is damaged: {error}") from error


def _digest(path: Path) -> str:
    """As `digest_bytes` of its bytes."""
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def settled(folder: Path) -> int:
    """The step that no resumed run goes back before: as many checkpoints as are kept are at it or
    after it. 0 where there are not so many."""
    steps = [step for step, _ in _steps(folder)]
    return steps[-KEPT] if len(steps) >= KEPT else 0


def _steps(folder: Path) -> list[tuple[int, Path]]:
    """The published checkpoints, oldest first."""
    found = [(re.fullmatch(r"step-(\d+)", path.name), path) for path in folder.glob("step-*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"damaged-{path.name}-{number}")).exists():
        number += 1
    return aside
