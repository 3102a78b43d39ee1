"""A training job: everything that a run needs, in one file; and running it to its end.

In: job.json. Out, in the job's folder: metrics.jsonl, checkpoints/, adapter/ (peft's format) or
model/ by one rename, probe.json, and result.json last of all. Run again it returns the result that
is there, or goes on from the newest checkpoint to the same bits (`trainer.running`). An online job
has no rows: `trainer.online`. Under torchrun all its processes run it together.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from filelock import FileLock, Timeout
from pydantic import ValidationError

from flywheel.errors import Busy, UsageError, unfit
from flywheel.ids import digest, digest_bytes
from flywheel.train_section import TrainSection
from trainer.probe import ProbePair

WAIT_S = 20
"""For another trainer of the same run: one whose parent was killed is about to leave."""

_log = logging.getLogger("flywheel.trainer")


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: str
    base_model: str
    """Folder of the base model."""
    init_adapter: str | None = None
    """Folder of the champion's adapter, to go on from; None = the base model as it is."""
    rows: str | None = None
    """The dataset's rows.parquet. None = an online job."""
    online: bool = False
    """Its batches come through the spool in `out`, one a step."""
    patience_s: float = 86_400.0
    """Longest wait for one batch."""
    train: dict[str, Any]
    """The fields of a `TrainSection`."""
    out: str
    """The run's folder."""
    probe: tuple[ProbePair, ...] = ()
    """() = the first rows, or the first batch's samples, by their ids."""
    seed: int = 0
    """Of the new adapter's first weights and torch's generator; the order is `train`'s."""
    threads: int = 2
    """A process."""
    device: str | None = None
    """As torch names it. None = a GPU where there is one, else the CPU."""
    activation_mib: int = 768
    """Memory for what the backward pass needs; past it, layers are recomputed."""


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    """Digest of the job and of what its paths held."""
    checkpoint_id: str
    """Digest of the new weights, and of an adapter's config."""
    adapter: str
    """Its folder: an adapter's, or a whole model's."""
    old_digest: str | None
    """Digest of the adapter that it started from; None = the base model."""
    steps: int
    first_loss: float | None
    last_loss: float | None
    tokens: int | None
    """Of all steps' samples, as if each were computed alone. None = another engine trained, and
    did not say."""
    seconds: float
    """In optimizer steps, over all attempts that count."""
    rows: int
    """Trained on; of an online job, its batches' samples."""
    refused: tuple[tuple[str, str], ...] = ()
    """(row id, reason): rows that could not be trained on."""
    kind: Literal["adapter", "full"] = "adapter"
    """What `adapter` holds."""


def run(job_path: Path) -> JobResult:
    """Runs the job of `job_path`, or what is left of it.

    Raises:
        UsageError: the job cannot be read, names what is not there, or its folder is another job's.
        Busy: another process runs it.
        FlywheelError: no row can be trained on, or training diverged.
    """
    job = read_job(job_path)
    settings = settings_of(job)
    out = Path(job.out)
    identity, older = _identities(job, settings)
    out.mkdir(parents=True, exist_ok=True)
    from trainer.parallel import joined

    with joined(job.device) as ranks, _alone(job, out) if ranks.first else contextlib.nullcontext():
        done = ranks.agreed(lambda: _finished(out, (identity, older)))
        if done is not None:
            return done
        from trainer.running import carry_out

        return carry_out(job, settings, out, identity, ranks)


@contextlib.contextmanager
def _alone(job: Job, out: Path) -> Iterator[None]:
    lock = FileLock(out / "trainer.lock")
    try:
        lock.acquire(timeout=WAIT_S)
    except Timeout as error:
        raise Busy(f"another process trains run {job.run_id} in {out}") from error
    try:
        yield
    finally:
        lock.release()


def read_job(path: Path) -> Job:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} is not a training job: {error}") from error


def settings_of(job: Job) -> TrainSection:
    try:
        return TrainSection.model_validate(job.train)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {unfit(one)}".removeprefix(": ")
                         for one in error.errors())  # fmt: skip
        raise UsageError(f"run {job.run_id}: train: {told}") from error


def _identities(job: Job, settings: TrainSection) -> tuple[str, str]:
    """Of all that decides the weights that come out, so not of where things lie; and what it was
    where only an adapter's weights were digested: runs that ended so are not trained again."""
    from trainer.models import digests_of

    if job.online == (job.rows is not None):
        raise UsageError(f"run {job.run_id}: a job has either rows or online = true")
    if job.rows is not None and not Path(job.rows).is_file():
        raise UsageError(f"run {job.run_id}: there are no rows at {job.rows}")
    content = digest_bytes(Path(job.rows).read_bytes()) if job.rows else "online"
    given = settings.model_dump(mode="json", exclude={"machine": True, "rl": {"engines"}})
    name, init = Path(job.base_model).name, job.init_adapter
    starts = digests_of(Path(init)) if init else (init, init)
    now, older = (
        digest(job.run_id, given, content, start, name, job.seed, job.probe) for start in starts
    )
    return now, older


def _finished(out: Path, identities: tuple[str, str]) -> JobResult | None:
    path = out / "result.json"
    if not path.exists():
        return None
    try:
        result = msgspec.json.decode(path.read_bytes(), type=JobResult)
    except msgspec.DecodeError as error:
        _log.warning("%s cannot be read (%s); the run is finished again", path, error)
        return None
    if result.job not in identities:
        raise UsageError(f"{path} is another job's: use another run id, or remove {out}")
    return result
