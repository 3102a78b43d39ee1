"""One job carried out: from a base model and what it is trained on to weights, probe and result.

Enters a job that was read and found sound; leaves what `trainer.job` promises. Nothing here knows
whether it is the first attempt.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from flywheel.durable import write
from flywheel.errors import FlywheelError, UsageError
from flywheel.failpoints import failpoint
from flywheel.row_files import read_rows
from flywheel.train_section import TrainSection
from trainer.algorithms import ALGORITHMS
from trainer.algorithms.contract import Context, Prepared
from trainer.checkpoints import Progress
from trainer.feed import Epochs, Feed
from trainer.job import Job, JobResult
from trainer.loop import train
from trainer.models import digest_of, load_base
from trainer.online import Batches, probe_pairs
from trainer.parallel import Ranks
from trainer.probe import ProbePair, pairs_of, probe_logprobs, write_probe
from trainer.render import renderer_for
from trainer.weights import Weights, start

_log = logging.getLogger("flywheel.trainer")


class Set(NamedTuple):
    """What a run trains on, and by what its weights are known again."""

    feed: Feed
    pairs: Sequence[ProbePair]
    old: Sequence[tuple[float, ...]]
    """Their logprobs under the weights that the run starts from."""
    rows: int | None = None
    """None = known when the run ends."""
    refused: tuple[tuple[str, str], ...] = ()


def carry_out(
    job: Job, settings: TrainSection, out: Path, identity: str, ranks: Ranks
) -> JobResult:
    """
    Raises:
        FlywheelError: no row can be trained on, no step was, or training diverged.
    """
    init = Path(job.init_adapter) if job.init_adapter else None
    with _repeatable(job, ranks):
        base = load_base(Path(job.base_model), threads=job.threads)
        given = None if job.online else _prepare(job, settings, base.tokenizer)
        weights = start(base, settings, init, job.seed, ranks)
        ready = (
            _offline(job, settings, given, weights) if given else _online(job, settings, weights)
        )
        progress = train(
            weights, ready.feed, settings, out,
            job=identity, activation_bytes=job.activation_mib << 20,
        )  # fmt: skip
        if not progress.step:
            raise FlywheelError(f"run {job.run_id}: it was ended before its first step")
        failpoint("train.before_adapter")
        with weights.as_kept():
            _leave(weights, ready, out)
    failpoint("train.before_result")
    return ranks.agreed(lambda: _concluded(identity, init, out / weights.folder, progress, ready))


def _offline(job: Job, settings: TrainSection, prepared: Prepared, weights: Weights) -> Set:
    pairs = job.probe or pairs_of(prepared.samples)
    old = weights.apply(probe_logprobs, pairs)
    rows = len(prepared.samples)
    return Set(Epochs(prepared.samples, settings), pairs, old, rows, prepared.refused)


def _online(job: Job, settings: TrainSection, weights: Weights) -> Set:
    out = Path(job.out)
    pairs = job.probe or probe_pairs(out, job.patience_s, weights.vocabulary)
    feed = Batches(
        out, weights, steps=settings.rl.steps, pairs=pairs, patience_s=job.patience_s
    )  # fmt: skip
    return Set(feed, pairs, feed.old)


def _leave(weights: Weights, ready: Set, out: Path) -> None:
    kept = out / weights.folder
    if weights.ranks.first:
        shutil.rmtree(kept, ignore_errors=True)
    weights.save(kept)
    new = weights.apply(probe_logprobs, ready.pairs)
    if weights.ranks.first:
        write_probe(out / "probe.json", ready.pairs, new=new, old=ready.old)


def _concluded(
    identity: str, init: Path | None, kept: Path, progress: Progress, ready: Set
) -> JobResult:
    result = JobResult(
        job=identity,
        checkpoint_id=digest_of(kept),
        adapter=str(kept),
        old_digest=digest_of(init) if init else None,
        steps=progress.step,
        first_loss=progress.first_loss,
        last_loss=progress.last_loss,
        tokens=progress.tokens,
        seconds=progress.seconds,
        rows=progress.samples if ready.rows is None else ready.rows,
        refused=ready.refused,
        kind="full" if kept.name == "model" else "adapter",
    )
    write(kept.parent / "result.json", msgspec.json.encode(result))
    return result


def _prepare(job: Job, settings: TrainSection, tokenizer: Any) -> Prepared:
    """The job's samples.

    Raises:
        FlywheelError: not one row can be trained on; says why, reason by reason.
    """
    assert job.rows is not None
    rows = read_rows(Path(job.rows))
    make = ALGORITHMS[settings.algorithm].rows
    if make is None:
        raise UsageError(f"{settings.algorithm} samples while it trains: it takes no rows")
    prepared = make(rows, Context(renderer_for(tokenizer), settings))
    if prepared.refused:
        _log.warning("%s of %s rows refused: %s", len(prepared.refused), len(rows), _why(prepared))
    if not prepared.samples:
        raise FlywheelError(
            f"run {job.run_id}: none of {len(rows)} rows can be trained on: {_why(prepared)}"
        )
    return prepared


def _why(prepared: Prepared) -> str:
    counts: dict[str, int] = {}
    for _, reason in prepared.refused:
        counts[reason] = counts.get(reason, 0) + 1
    return "; ".join(f"{count} x {reason}" for reason, count in sorted(counts.items()))


@contextlib.contextmanager
def _repeatable(job: Job, ranks: Ranks) -> Iterator[None]:
    """The same job gives the same bits in here, with the same number of threads and processes; on a
    GPU as far as its kernels do."""
    switches: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    filled = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=ranks.device.type != "cpu")
    switches.fill_uninitialized_memory = False
    torch.set_num_threads(job.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)
            yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        switches.fill_uninitialized_memory = filled
        torch.set_num_threads(before[1])
