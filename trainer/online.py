"""The trainer's side of an online run: batches come through the spool, versions go out of it.

In: `batches/step-N.batch`, waited for. Out: `versions/vN/` (the weights and probe.json), by one
rename. A version is written once: a resumed run that trains a step again keeps what is there, and
does not bring back what was dropped. A batch is removed when no resumed run can need it.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, FlywheelError
from flywheel.failpoints import failpoint
from trainer import spool
from trainer.checkpoints import fresh, settled
from trainer.feed import Fed
from trainer.losses import COMPONENTS
from trainer.probe import ProbePair, pairs_of, probe_logprobs, write_probe
from trainer.weights import Weights

POLL_S = 0.1

_log = logging.getLogger("flywheel.trainer")


class Batches:
    """The feed of an online run."""

    def __init__(
        self,
        folder: Path,
        weights: Weights,
        *,
        steps: int,
        pairs: Sequence[ProbePair],
        patience_s: float,
    ) -> None:
        """`weights` are still those that the run starts from."""
        self.steps = steps
        self.pairs = pairs
        self.old = weights.apply(probe_logprobs, pairs)
        """Under the weights that the run starts from."""
        self._folder, self._weights, self._patience_s = folder, weights, patience_s

    def take(self, step: int) -> Fed | None:
        """
        Raises:
            FlywheelError: no batch came for too long, or it has no samples, or is gone.
            CorruptFile: it is not one of this run's.
        """
        if self._weights.ranks.first:
            spool.drop_batches(self._folder, up_to=settled(self._folder / "checkpoints"))
        if step > self.steps:
            return None
        started = time.monotonic()
        self._check_kept(step)
        batch = await_batch(self._folder, step, self._patience_s, self._weights.vocabulary)
        if batch is None:
            return None
        waited = time.monotonic() - started
        return Fed(batch.samples, {**batch.report, "waited_s": waited})

    def _check_kept(self, step: int) -> None:
        """
        Raises:
            FlywheelError: the batch was trained and removed, and no checkpoint remembers it.
        """
        there = spool.batch_path(self._folder, step).exists()
        if not there and step <= max(spool.versions(self._folder), default=0):
            raise FlywheelError(
                f"{self._folder}: step {step} must be trained again, for its checkpoints are lost, "
                f"and its batch is gone: restore {self._folder / 'checkpoints'}, or remove the "
                "run's folder to begin anew"
            )

    def trained(self, step: int) -> None:
        """Publishes the version, unless it or a newer one was."""
        ranks, folder = self._weights.ranks, self._weights.folder
        if ranks.agreed(lambda: step <= max(spool.versions(self._folder), default=0)):
            return
        failpoint("train.before_version")
        final = spool.version_folder(self._folder, step)
        temporary = final.with_name(f".{final.name}.tmp")
        alone = fresh(temporary) if ranks.first else contextlib.nullcontext()
        with durable.no_space(final), alone:
            self._weights.save(temporary / folder)
            new = self._weights.apply(probe_logprobs, self.pairs)
            if ranks.first:
                write_probe(temporary / "probe.json", self.pairs, new=new, old=self.old)
                durable.publish(temporary, final)
        failpoint("train.after_version")


def await_batch(folder: Path, step: int, patience_s: float, vocabulary: int) -> spool.Batch | None:
    """The batch of `step`; None = the run was ended before it.

    Raises:
        FlywheelError: it did not come within `patience_s`, or holds nothing.
        CorruptFile: it is not what was put, has tokens beyond `vocabulary`, or is for
            losses that are not known.
    """
    deadline = time.monotonic() + patience_s
    while (batch := spool.take_batch(folder, step)) is None:
        last = spool.ended(folder)
        if last is not None and step > last:
            return None
        if time.monotonic() > deadline:
            raise FlywheelError(
                f"{folder}: no batch for step {step} came in {patience_s:.0f} s: is whoever plays "
                "the rollouts still there? Run again to go on waiting"
            )
        time.sleep(POLL_S)
    if not batch.samples:
        raise FlywheelError(f"{folder}: the batch of step {step} has no samples")
    path = spool.batch_path(folder, step)
    for sample in batch.samples:
        if max(sample.token_ids) >= vocabulary:
            raise CorruptFile(f"{path}: {sample.row_id} has a token that the model has not")
        if strange := sample.weights.keys() - COMPONENTS.keys():
            raise CorruptFile(f"{path}: {sample.row_id} weighs in no loss: {sorted(strange)}")
    return batch


def probe_pairs(folder: Path, patience_s: float, vocabulary: int) -> tuple[ProbePair, ...]:
    """Of the first batch's samples, the same ones whenever the run is taken up again; () = it was
    ended with no batch."""
    path = folder / "pairs.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=tuple[ProbePair, ...])
    batch = await_batch(folder, 1, patience_s, vocabulary)
    pairs = pairs_of(batch.samples) if batch else ()
    if pairs:
        durable.write(path, msgspec.json.encode(pairs))
    return pairs
