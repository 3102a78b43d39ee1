"""Two processes, each with half of the micro-batches and of every tensor, are as good as one."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import distributed

from flywheel.errors import UsageError
from flywheel.train_section import RLSection, TrainSection
from trainer.feed import Epochs
from trainer.filling import fill
from trainer.job import run
from trainer.launch import torchrun
from trainer.loop import _gradients, train
from trainer.losses import count_units
from trainer.metrics import read
from trainer.packing import pack
from trainer.parallel import ALONE, Ranks, shard, whole
from trainer.samples import Sample
from trainer.weights import Weights

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = TrainSection(
    epochs=1,
    batch=3,
    micro_tokens=36,
    warmup_steps=0,
    checkpoint_every=2,
    ema=0.5,
    rl=RLSection(kl=0.1),
)
LITTLE = 1 << 16
"""Bytes for activations: layers are recomputed."""


def rollouts() -> list[Sample]:
    from tests.trainer.conftest import random_samples

    return [
        msgspec.structs.replace(
            sample,
            weights={
                name: tuple(1.0 if on else 0.0 for on in sample.mask) for name in ("rl", "ref_kl")
            },
            behaviour_logprobs=tuple(-2.0 if on else 0.0 for on in sample.mask),
            advantages=tuple(float(1 - 2 * (index % 2)) for _ in sample.mask),
        )
        for index, sample in enumerate(random_samples(9, shared=20))
    ]


def small(ranks: Ranks, *, full: bool) -> Weights:
    from tests.trainer.conftest import small_model

    model = small_model(torch.float32)
    if full:
        model.requires_grad_(True)
    if ranks.world > 1:
        shard(model, ranks, torch.float32)
    return Weights(model, ranks=ranks, ema=SETTINGS.ema)


def gradients(ranks: Ranks, *, full: bool) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    weights = small(ranks, full=full)
    samples = fill(weights, rollouts()[:7], SETTINGS)
    weights.model.train()
    packs = pack(samples, SETTINGS.micro_tokens, ranks.world)
    sums = _gradients(weights, packs, count_units(samples, SETTINGS), SETTINGS, LITTLE)
    found = {
        name: whole(each.grad) for name, each in weights.learning.items() if each.grad is not None
    }
    return sums, found


def trained(ranks: Ranks, folder: Path, steps: int) -> dict[str, torch.Tensor]:
    class Cut(Epochs):
        def take(self, step: int) -> Any:
            return super().take(step) if step <= steps else None

    weights = small(ranks, full=False)
    feed = Cut(rollouts(), SETTINGS)
    train(weights, feed, SETTINGS, folder, job="j", activation_bytes=LITTLE)
    with weights.as_kept():
        return {name: whole(each).clone() for name, each in weights.learning.items()}


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    ranks = Ranks(torch.device("cpu"), rank, 2)
    found = [gradients(ranks, full=full) for full in (False, True)]
    trained(ranks, folder / "run", 2)
    kept = trained(ranks, folder / "run", 3)
    if ranks.first:
        torch.save([found, kept], folder / "found.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_have_one_processs_loss_gradients_and_checkpoints(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")  # not fork: polars has threads
    context.set_forkserver_preload(["torch", "transformers", "peft", "renderers", "polars"])
    children = [context.Process(target=_rank, args=(rank, tmp_path)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    found, kept = torch.load(tmp_path / "found.pt")
    for full, (sums, theirs) in zip((False, True), found, strict=True):
        alone, ours = gradients(ALONE, full=full)
        assert sums == pytest.approx(alone, rel=1e-5, abs=1e-5)
        assert theirs.keys() == ours.keys()
        for name, gradient in ours.items():
            torch.testing.assert_close(theirs[name], gradient, rtol=1e-5, atol=1e-5)
    one = trained(ALONE, tmp_path / "alone", 3)
    lines = [
        [(line.step, pytest.approx(line.loss, abs=1e-4)) for line in read(folder / "metrics.jsonl")]
        for folder in (tmp_path / "alone", tmp_path / "run")
    ]
    assert [step for step, _ in lines[0]] == [step for step, _ in lines[1]] == [1, 2, 3]
    for name, parameter in one.items():
        torch.testing.assert_close(kept[name], parameter, rtol=0, atol=2e-4)


@pytest.mark.slow
def test_torchrun_trains_a_job_over_two_processes_and_one_goes_on(online_job_in: Any) -> None:
    machine = {"engine": "torchrun", "processes": 2}
    job = online_job_in("two", train={"machine": machine}, put=3, patience_s=1.0)
    from trainer import spool

    command = [sys.executable, "-m", "trainer", str(job)]
    stopped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert stopped.returncode == 1 and "no batch for step 4 came" in stopped.stderr
    assert spool.versions(job.parent) == [1, 2, 3]
    whole = online_job_in("one")
    run(whole)
    spool.put_batch(job.parent, spool.take_batch(whole.parent, 4))
    run(job)
    one, two = (json.loads((each.parent / "result.json").read_bytes()) for each in (whole, job))
    assert two["steps"] == one["steps"] == 4
    assert two["last_loss"] == pytest.approx(one["last_loss"], abs=1e-4)


def test_several_nodes_need_a_place_to_meet(online_job_in: Any) -> None:
    machine: dict[str, Any] = {"engine": "torchrun", "processes": 4, "nodes": 2}
    with pytest.raises(UsageError, match="2 nodes need an address"):
        torchrun(online_job_in("nowhere", train={"machine": machine}, put=0))
    machine["address"] = "first:29400"
    command = torchrun(online_job_in("somewhere", train={"machine": machine}, put=0))
    assert command is not None
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=first:29400"} <= set(command)
    assert torchrun(online_job_in("here", put=0)) is None
