"""The training loop: a feed of samples and weights enter, the weights have learnt when it returns.

It knows no algorithm: what a sample weighs in which loss is the sample's, and where samples come
from is the feed's. One step packs its samples into micro-batches, adds up gradients whose
denominators count the whole step, clips, and moves. A run that was killed and goes on from its
newest checkpoint ends with the same bits as one that was not.
"""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from flywheel.errors import FlywheelError
from flywheel.failpoints import failpoint
from flywheel.progress import report
from flywheel.train_section import TrainSection
from trainer.checkpoints import Progress
from trainer.feed import Fed, Feed
from trainer.filling import fill, fill_proximal
from trainer.forward import recompute_layers, score, text_of
from trainer.gauges import gauge
from trainer.losses import count_units, reduce, settled
from trainer.metrics import MetricsFile, StepMetrics
from trainer.packing import AT_ONE, Packed, pack
from trainer.parallel import whole
from trainer.schedule import learning_rate
from trainer.state import State
from trainer.weights import Weights, compute_of


class Diverged(FlywheelError):
    """Loss or gradients are no longer numbers. Nothing of that step is kept."""


def train(
    weights: Weights,
    feed: Feed,
    settings: TrainSection,
    folder: Path,
    *,
    job: str,
    activation_bytes: int,
) -> Progress:
    """Trains `weights`; resumes from `folder`/checkpoints if there is one of `job`.

    Raises:
        Diverged: loss or gradient norm is not finite; names step and rows.
    """
    state = State(weights, settings, folder / "checkpoints", job)
    after, lines = state.progress.step, folder / "metrics.jsonl"
    if after:
        feed.trained(after)
    with (
        MetricsFile(lines, after=after)
        if weights.ranks.first
        else contextlib.nullcontext() as metrics
    ):
        report("training", after, feed.steps)
        while fed := feed.take(step := state.progress.step + 1):
            rate = learning_rate(step, feed.steps, settings)
            line = _step(state, fed, settings, step, rate, activation_bytes)
            if metrics is not None:
                metrics.append(line)
            state.progress = _advanced(state.progress, line, len(fed.samples))
            failpoint("train.after_step")
            feed.trained(step)
            if step % settings.checkpoint_every == 0 or step == feed.steps:
                state.save()
            report("training", step, feed.steps, f"loss {line.loss:.4f}")
    weights.model.eval()
    return state.progress


def _step(
    state: State, fed: Fed, settings: TrainSection, step: int, rate: float, activation_bytes: int
) -> StepMetrics:
    started = time.perf_counter()
    weights, optimizer = state.weights, state.optimizer
    weights.model.train()
    samples = fill(weights, fed.samples, settings)
    counts = count_units(samples, settings)
    width = text_of(weights.model).config.hidden_size
    packs = pack(samples, settings.micro_tokens, weights.ranks.world, width=width)
    optimizer.zero_grad(set_to_none=True)
    sums = _gradients(weights, packs, counts, settings, activation_bytes)
    norm = float(whole(torch.nn.utils.clip_grad_norm_(weights.learning.values(), settings.clip)))
    loss = sums.pop("loss")
    if not (math.isfinite(loss) and math.isfinite(norm)):
        rows = ", ".join(sample.row_id for sample in samples)
        raise Diverged(
            f"step {step}: loss {loss}, gradient norm {norm}; nothing of it is kept. "
            f"Lower train.learning_rate, or look at the step's rows: {rows}"
        )
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    weights.moved()
    tokens = sum(len(sample.token_ids) for sample in samples)
    seconds = time.perf_counter() - started
    return StepMetrics(
        step=step,
        loss=loss,
        ce_tokens=int(counts.get("ce", 0)),
        tokens=tokens,
        computed_tokens=sum(len(each.token_ids) for each in packs if each.samples),
        micro_batches=len(packs),
        learning_rate=rate,
        grad_norm=norm,
        tokens_per_second=tokens / seconds,
        seconds=seconds,
        measured={**settled(sums), **fed.report, **_machine(weights, packs, settings, seconds)},
    )


def _gradients(
    weights: Weights,
    packs: Sequence[Packed],
    counts: Mapping[str, float],
    settings: TrainSection,
    activation_bytes: int,
) -> dict[str, float]:
    """Adds up this rank's micro-batches' gradients, with all ranks'. Returns the step's `loss`, its
    parts as `loss/COMPONENT`, and stats, over all ranks."""
    ranks = weights.ranks
    entropies = bool({name.partition("/")[0] for name in counts} - AT_ONE)
    found: dict[str, list[torch.Tensor]] = {}
    for at in range(0, len(packs), ranks.world):
        # All ranks recompute the same layers: these gather weights, which all must do together.
        largest = max(len(each.token_ids) for each in packs[at : at + ranks.world])
        recompute_layers(weights.model, largest, activation_bytes)
        packed = packs[at + ranks.rank]
        scores = weights.apply(score, packed, entropies=entropies)
        packed = fill_proximal(packed, scores.logprobs, settings)
        reduced = reduce(packed, scores.logprobs, counts, settings, scores.entropies)
        # FSDP2 takes the mean over ranks of what is one rank's share of a sum.
        (reduced.loss * ranks.world).backward()  # type: ignore[no-untyped-call]
        parts = {f"loss/{name}": share for name, share in reduced.shares.items()}
        for name, value in ({"loss": reduced.loss} | parts | reduced.stats).items():
            found.setdefault(name, []).append(value.detach())
    return ranks.summed({name: math.fsum(map(float, all_)) for name, all_ in found.items()})


def _machine(
    weights: Weights, packs: Sequence[Packed], settings: TrainSection, seconds: float
) -> dict[str, float | None]:
    """Of this rank: the others do as much (`trainer.packing.pack`)."""
    ranks = weights.ranks
    own, compute = packs[ranks.rank :: ranks.world], compute_of(settings, ranks.device)
    return gauge(weights.model, own, seconds, compute=compute)


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
