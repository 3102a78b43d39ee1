"""A training job: everything that a run needs, in one file; and running it to its end.

In: job.json. Out, in the job's folder: metrics.jsonl, checkpoints/, adapter/ (peft's format, by one
rename), probe.json, and result.json last of all. Run again it returns the result that is there, or
goes on from the newest checkpoint to the same bits.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock, Timeout
from pydantic import ValidationError

from flywheel.durable import write
from flywheel.errors import Busy, FlywheelError, UsageError
from flywheel.failpoints import failpoint
from flywheel.ids import digest, digest_bytes
from flywheel.project import TrainSection
from flywheel.rows import read_rows
from trainer.probe import ProbePair, probe_logprobs, write_probe

if TYPE_CHECKING:
    from trainer.algorithms.contract import Prepared
    from trainer.samples import Sample

ADAPTER = "candidate"
"""Its name while it is trained."""
PROBES = 8
"""Probe pairs taken from the rows where a job names none."""

WAIT_S = 20
"""For another trainer of the same run: one whose parent was killed is about to leave."""

_log = logging.getLogger("flywheel.trainer")


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: str
    base_model: str
    """Folder of the base model."""
    init_adapter: str | None = None
    """Folder of the champion's adapter, to go on from; None = a new one on the base model."""
    rows: str
    """The dataset's rows.parquet."""
    train: dict[str, Any]
    """The fields of a `TrainSection`."""
    out: str
    """The run's folder."""
    probe: tuple[ProbePair, ...] = ()
    """() = the first rows by their ids."""
    seed: int = 0
    """Of the new adapter's first weights and torch's generator; the order is `train`'s."""
    threads: int = 2
    activation_mib: int = 768
    """Memory for what the backward pass needs; past it, layers are recomputed."""


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    """Digest of the job and of what its paths held."""
    checkpoint_id: str
    """Digest of the new adapter: its weights and its config."""
    adapter: str
    """Its folder."""
    old_digest: str | None
    """Digest of the adapter that it started from; None = the base model."""
    steps: int
    first_loss: float | None
    last_loss: float | None
    tokens: int
    """Of all steps' samples, as if each were computed alone."""
    seconds: float
    """In optimizer steps, over all attempts that count."""
    rows: int
    """Trained on."""
    refused: tuple[tuple[str, str], ...] = ()
    """(row id, reason): rows that could not be trained on."""


def run(job_path: Path) -> JobResult:
    """Runs the job of `job_path`, or what is left of it.

    Raises:
        UsageError: the job cannot be read, names what is not there, or its folder is another job's.
        Busy: another process runs it.
        FlywheelError: no row can be trained on, or training diverged.
    """
    job = read_job(job_path)
    settings = _settings(job)
    out = Path(job.out)
    identity, older = _identities(job, settings)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / "trainer.lock", timeout=WAIT_S):
            return _finished(out, (identity, older)) or _train(job, settings, out, identity)
    except Timeout as error:
        raise Busy(f"another process trains run {job.run_id} in {out}") from error


def read_job(path: Path) -> Job:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} is not a training job: {error}") from error


def _settings(job: Job) -> TrainSection:
    try:
        return TrainSection.model_validate(job.train)
    except ValidationError as error:
        raise UsageError(f"run {job.run_id}: train: {error}") from error


def _identities(job: Job, settings: TrainSection) -> tuple[str, str]:
    """Of all that decides the weights that come out, so not of where things lie; and what it was
    where only an adapter's weights were digested: runs that ended so are not trained again."""
    from trainer.models import digests_of

    rows = Path(job.rows)
    if not rows.is_file():
        raise UsageError(f"run {job.run_id}: there are no rows at {rows}")
    given, content = settings.model_dump(mode="json"), digest_bytes(rows.read_bytes())
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


def _train(job: Job, settings: TrainSection, out: Path, identity: str) -> JobResult:
    from trainer.loop import train
    from trainer.models import digest_of, load_base, save_adapter

    init = Path(job.init_adapter) if job.init_adapter else None
    adapter = out / "adapter"
    with _repeatable(job):
        base = load_base(Path(job.base_model), threads=job.threads)
        prepared = _prepare(job, settings, base.tokenizer)
        _adapt(base.model, job, settings, init)
        pairs = job.probe or _pairs(prepared.samples)
        old = probe_logprobs(base.model, pairs)
        progress = train(
            base.model, prepared.samples, settings, out,
            job=identity, activation_bytes=job.activation_mib << 20,
        )  # fmt: skip
        failpoint("train.before_adapter")
        shutil.rmtree(adapter, ignore_errors=True)
        save_adapter(base.model, ADAPTER, adapter)
        write_probe(out / "probe.json", pairs, new=probe_logprobs(base.model, pairs), old=old)
    failpoint("train.before_result")
    result = JobResult(
        job=identity,
        checkpoint_id=digest_of(adapter),
        adapter=str(adapter),
        old_digest=digest_of(init) if init else None,
        steps=progress.step,
        first_loss=progress.first_loss,
        last_loss=progress.last_loss,
        tokens=progress.tokens,
        seconds=progress.seconds,
        rows=len(prepared.samples),
        refused=prepared.refused,
    )
    write(out / "result.json", msgspec.json.encode(result))
    return result


def _adapt(model: Any, job: Job, settings: TrainSection, init: Path | None) -> None:
    """Puts what learns into the model: the champion's adapter to go on from, or a new one.

    Raises:
        UsageError: the champion's has another shape than the project asks for.
    """
    from trainer.attention import attend
    from trainer.lora import fuse_adapter
    from trainer.models import add_adapter, use_attention

    rank, alpha = settings.rank, settings.alpha
    add_adapter(model, ADAPTER, init, rank=rank, alpha=alpha, seed=job.seed, trainable=True)
    config = model.peft_config[ADAPTER]
    if (config.r, config.lora_alpha) != (rank, alpha):
        raise UsageError(
            f"adapter {init} has rank {config.r} and alpha {config.lora_alpha}, the project says "
            f"{rank} and {alpha}: a run goes on with the shape it started from"
        )
    use_attention(model, "flywheel_tree", attend)
    fuse_adapter(model, ADAPTER)


def _prepare(job: Job, settings: TrainSection, tokenizer: Any) -> "Prepared":
    """The job's samples.

    Raises:
        FlywheelError: not one row can be trained on; says why, reason by reason.
    """
    from trainer.algorithms import ALGORITHMS
    from trainer.algorithms.contract import Context
    from trainer.render import renderer_for

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


def _why(prepared: "Prepared") -> str:
    counts: dict[str, int] = {}
    for _, reason in prepared.refused:
        counts[reason] = counts.get(reason, 0) + 1
    return "; ".join(f"{count} x {reason}" for reason, count in sorted(counts.items()))


def _pairs(samples: "tuple[Sample, ...]") -> tuple[ProbePair, ...]:
    chosen = sorted(samples, key=lambda sample: (sample.row_id, sample.trace_id or ""))[:PROBES]
    return tuple(
        ProbePair(sample.token_ids[: sample.targets[0]], sample.token_ids[sample.targets[0] :])
        for sample in chosen
    )


@contextlib.contextmanager
def _repeatable(job: Job) -> Iterator[None]:
    """The same job gives the same bits in here, with the same number of threads."""
    import torch

    switches: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    filled = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
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
