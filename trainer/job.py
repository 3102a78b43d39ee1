"""A training job: everything that a run needs, in one file; and running it to its end.

In: job.json. Out, in the job's folder: metrics.jsonl, checkpoints/, adapter/ (peft's format, by one
rename), probe.json, and result.json last of all. Run again it returns the result that is there, or
goes on from the newest checkpoint to the same bits. An online job has no rows: `trainer.online`.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from filelock import FileLock, Timeout
from pydantic import ValidationError

from flywheel.durable import write
from flywheel.errors import Busy, FlywheelError, UsageError
from flywheel.failpoints import failpoint
from flywheel.ids import digest, digest_bytes
from flywheel.project import TrainSection
from flywheel.rows import read_rows
from trainer.probe import ProbePair, pairs_of, probe_logprobs, write_probe

if TYPE_CHECKING:
    from trainer.algorithms.contract import Prepared
    from trainer.feed import Feed
    from trainer.weights import Weights

WAIT_S = 20
"""For another trainer of the same run: one whose parent was killed is about to leave."""

_log = logging.getLogger("flywheel.trainer")


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: str
    base_model: str
    """Folder of the base model."""
    init_adapter: str | None = None
    """Folder of the champion's adapter, to go on from; None = a new one on the base model."""
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
    """Trained on; of an online job, its batches' samples."""
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

    if job.online == (job.rows is not None):
        raise UsageError(f"run {job.run_id}: a job has either rows or online = true")
    if job.rows is not None and not Path(job.rows).is_file():
        raise UsageError(f"run {job.run_id}: there are no rows at {job.rows}")
    content = digest_bytes(Path(job.rows).read_bytes()) if job.rows else "online"
    given = settings.model_dump(mode="json")
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
    from trainer.models import digest_of, load_base
    from trainer.weights import start

    init = Path(job.init_adapter) if job.init_adapter else None
    with _repeatable(job):
        base = load_base(Path(job.base_model), threads=job.threads)
        weights = start(base.model, settings, init, job.seed)
        set_up = _online if job.online else _offline
        fed = set_up(job, settings, out, base.tokenizer, weights)
        progress = train(
            base.model, fed.feed, settings, out,
            job=identity, activation_bytes=job.activation_mib << 20,
        )  # fmt: skip
        if not progress.step:
            raise FlywheelError(f"run {job.run_id}: it was ended before its first step")
        failpoint("train.before_adapter")
        kept = out / weights.kind
        shutil.rmtree(kept, ignore_errors=True)
        weights.save(kept)
        new = probe_logprobs(base.model, fed.pairs)
        write_probe(out / "probe.json", fed.pairs, new=new, old=fed.old)
    failpoint("train.before_result")
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
        rows=progress.samples if fed.rows is None else fed.rows,
        refused=fed.refused,
    )
    write(out / "result.json", msgspec.json.encode(result))
    return result


class _SetUp(NamedTuple):
    feed: "Feed"
    pairs: Sequence[ProbePair]
    old: list[tuple[float, ...]]
    """Their logprobs under the weights that the run starts from."""
    rows: int | None = None
    """None = known when the run ends."""
    refused: tuple[tuple[str, str], ...] = ()


def _offline(
    job: Job, settings: TrainSection, out: Path, tokenizer: Any, weights: "Weights"
) -> _SetUp:
    from trainer.feed import Epochs

    prepared = _prepare(job, settings, tokenizer)
    pairs = job.probe or pairs_of(prepared.samples)
    feed = Epochs(prepared.samples, settings)
    old = probe_logprobs(weights.model, pairs)
    return _SetUp(feed, pairs, old, len(prepared.samples), prepared.refused)


def _online(
    job: Job, settings: TrainSection, out: Path, tokenizer: Any, weights: "Weights"
) -> _SetUp:
    from trainer.online import Batches, probe_pairs

    pairs = job.probe or probe_pairs(out, job.patience_s)
    feed = Batches(
        out, weights, steps=settings.rl.steps, pairs=pairs, patience_s=job.patience_s
    )  # fmt: skip
    return _SetUp(feed, pairs, feed.old)


def _prepare(job: Job, settings: TrainSection, tokenizer: Any) -> "Prepared":
    """The job's samples.

    Raises:
        FlywheelError: not one row can be trained on; says why, reason by reason.
    """
    from trainer.algorithms import ALGORITHMS
    from trainer.algorithms.contract import Context
    from trainer.render import renderer_for

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


def _why(prepared: "Prepared") -> str:
    counts: dict[str, int] = {}
    for _, reason in prepared.refused:
        counts[reason] = counts.get(reason, 0) + 1
    return "; ".join(f"{count} x {reason}" for reason, count in sorted(counts.items()))


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
