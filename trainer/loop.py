"""The training loop: a feed of samples and a model enter, the model has learnt when it returns.

It knows no algorithm: what a sample weighs in which loss is the sample's, and where samples come
from is the feed's. One step packs its samples into micro-batches, adds up gradients whose
denominators count the whole step, clips, and moves. A run that was killed and goes on from its
newest checkpoint ends with the same bits as one that was not.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from flywheel.errors import FlywheelError
from flywheel.failpoints import failpoint
from flywheel.progress import report
from flywheel.project import TrainSection
from trainer.checkpoints import Checkpoint, Progress, newest_checkpoint, save_checkpoint
from trainer.feed import Feed
from trainer.forward import recompute_layers, trained_logprobs
from trainer.losses import count_units, reduce
from trainer.metrics import MetricsFile, StepMetrics
from trainer.packing import Packed, pack
from trainer.samples import Sample
from trainer.schedule import learning_rate


class Diverged(FlywheelError):
    """Loss or gradients are no longer numbers. Nothing of that step is kept."""


def train(
    model: torch.nn.Module,
    feed: Feed,
    settings: TrainSection,
    folder: Path,
    *,
    job: str,
    activation_bytes: int,
) -> Progress:
    """Trains what learns in `model`; resumes from `folder`/checkpoints if there is one of `job`.

    Raises:
        Diverged: loss or gradient norm is not finite; names step and rows.
    """
    optimizer = torch.optim.AdamW(
        _learning(model).values(), lr=0.0, weight_decay=settings.weight_decay
    )
    checkpoints = folder / "checkpoints"
    progress = _resume(model, optimizer, checkpoints, job)
    if progress.step:
        feed.trained(progress.step)
    with MetricsFile(folder / "metrics.jsonl", after=progress.step) as metrics:
        report("training", progress.step, feed.steps)
        while fed := feed.take(step := progress.step + 1):
            rate = learning_rate(step, feed.steps, settings)
            line = _step(model, optimizer, fed.samples, settings, step, rate, activation_bytes)
            metrics.append(line)
            progress = _advanced(progress, line, len(fed.samples))
            failpoint("train.after_step")
            feed.trained(step)
            if step % settings.checkpoint_every == 0 or step == feed.steps:
                _save(model, optimizer, checkpoints, progress)
            report("training", step, feed.steps, f"loss {line.loss:.4f}")
    model.eval()
    return progress


def _step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    settings: TrainSection,
    step: int,
    rate: float,
    activation_bytes: int,
) -> StepMetrics:
    started = time.perf_counter()
    model.train()
    counts = count_units(samples, settings)
    packs = pack(samples, settings.micro_tokens)
    optimizer.zero_grad(set_to_none=True)
    loss = sum(_gradients(model, each, counts, settings, activation_bytes) for each in packs)
    norm = float(torch.nn.utils.clip_grad_norm_(_learning(model).values(), settings.clip))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        rows = ", ".join(sample.row_id for sample in samples)
        raise Diverged(
            f"step {step}: loss {loss}, gradient norm {norm}; nothing of it is kept. "
            f"Lower train.learning_rate, or look at the step's rows: {rows}"
        )
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    tokens = sum(len(sample.token_ids) for sample in samples)
    seconds = time.perf_counter() - started
    return StepMetrics(
        step=step,
        loss=loss,
        ce_tokens=counts.get("ce", 0),
        tokens=tokens,
        computed_tokens=sum(len(each.token_ids) for each in packs),
        micro_batches=len(packs),
        learning_rate=rate,
        grad_norm=norm,
        tokens_per_second=tokens / seconds,
        seconds=seconds,
    )


def _gradients(
    model: torch.nn.Module,
    packed: Packed,
    counts: dict[str, int],
    settings: TrainSection,
    activation_bytes: int,
) -> float:
    """Adds this micro-batch's gradients; returns its share of the step's loss."""
    recompute_layers(model, len(packed.token_ids), activation_bytes)
    reduced = reduce(packed, trained_logprobs(model, packed), counts, settings)
    loss = torch.stack(list(reduced.shares.values())).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _advanced(progress: Progress, line: StepMetrics, samples: int) -> Progress:
    return Progress(
        job=progress.job,
        step=line.step,
        first_loss=line.loss if progress.first_loss is None else progress.first_loss,
        last_loss=line.loss,
        samples=progress.samples + samples,
        tokens=progress.tokens + line.tokens,
        seconds=progress.seconds + line.seconds,
    )


def _learning(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def _save(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path, progress: Progress
) -> None:
    failpoint("train.before_checkpoint")
    state = {
        f"{index}.{what}": value
        for index, values in optimizer.state_dict()["state"].items()
        for what, value in values.items()
    }
    weights = {name: value.detach() for name, value in _learning(model).items()}
    save_checkpoint(folder, Checkpoint(progress, weights, state, torch.get_rng_state()))
    failpoint("train.after_checkpoint")


def _resume(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path, job: str
) -> Progress:
    """Puts model, optimizer and random state where the newest checkpoint left them."""
    checkpoint = newest_checkpoint(folder, job)
    if checkpoint is None:
        return Progress(job=job)
    with torch.no_grad():
        for name, parameter in _learning(model).items():
            parameter.copy_(checkpoint.weights[name])
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in checkpoint.optimizer.items():
        index, what = key.split(".", 1)
        state.setdefault(int(index), {})[what] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    torch.set_rng_state(checkpoint.random)
    return checkpoint.progress
