"""From graded rollouts, and from preferred rows, to gradients: beside plain torch, written anew.

The oracle computes each sequence alone, knows no packing, and takes its formulas from the papers.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch

from flywheel.records import Sampling, say
from flywheel.train_section import TrainSection
from tests.trainer.playing import group, played, rewarded
from trainer.algorithms.contract import Context
from trainer.algorithms.dpo import dpo
from trainer.algorithms.grpo import grpo
from trainer.attention import attend
from trainer.feed import Epochs
from trainer.loop import train
from trainer.metrics import read
from trainer.models import add_adapter, load_base, use_attention
from trainer.render import Rendering
from trainer.samples import Sample
from trainer.weights import Weights

TINY = Path(__file__).resolve().parents[1] / "sorting" / "base"
HEAT = 0.7
COMMON: dict[str, Any] = {
    "epochs": 2, "batch": 64, "micro_tokens": 24, "clip": 1e9, "warmup_steps": 0,
    "schedule": "constant", "learning_rate": 0.02,
}  # fmt: skip


class Episode(NamedTuple):
    ids: tuple[int, ...]
    said: tuple[int, ...]
    """Places in `ids` that the policy sampled."""
    logprobs: tuple[float, ...]
    """By the engine, parallel to `said`."""
    reward: float


def episodes(model: Any) -> list[list[Episode]]:
    """Groups of one prompt each; the engine's logprobs are the model's own, but for much noise."""
    draw = random.Random(4)
    found = []
    for rewards in ((1.0, 0.0, 0.3), (0.2, 0.9)):
        prompt = [draw.randrange(3, 64) for _ in range(4)]
        several = []
        for reward in rewards:
            size = draw.randint(1, 6)
            ids = (*prompt, *(draw.randrange(3, 64) for _ in range(size)))
            said = tuple(range(4, 4 + size))
            own = logprobs_of(model, ids, said, HEAT).tolist()
            noisy = tuple(one + draw.uniform(-0.9, 0.9) for one in own)
            several.append(Episode(ids, said, noisy, reward))
        found.append(several)
    return found


def logprobs_of(model: Any, ids: Sequence[int], at: Sequence[int], heat: float) -> torch.Tensor:
    logits = model(torch.tensor([list(ids)])).logits[0] / heat
    return torch.stack([logits[place - 1].log_softmax(-1)[ids[place]] for place in at])


def learning(model: Any) -> list[torch.Tensor]:
    return [each for each in model.parameters() if each.requires_grad]


def descended(model: Any, loss: Callable[[], torch.Tensor]) -> tuple[list[float], list[Any]]:
    """Two steps of AdamW; the losses, and the gradients of the second."""
    parameters, losses = learning(model), []
    optimizer = torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(value.item())
    return losses, [each.grad for each in parameters]


def agree(
    model: Any, samples: Sequence[Sample], settings: TrainSection, folder: Path, oracle: Any
) -> None:
    feed = Epochs(samples, settings)
    train(Weights(model), feed, settings, folder, job="j", activation_bytes=1 << 30)
    losses, gradients = oracle
    assert [line.loss for line in read(folder / "metrics.jsonl")] == pytest.approx(losses, rel=1e-3)
    for parameter, wanted in zip(learning(model), gradients, strict=True):
        assert parameter.grad is not None and wanted.abs().max() > 0
        scale = float(wanted.abs().max())
        torch.testing.assert_close(parameter.grad, wanted, rtol=2e-3, atol=2e-3 * scale)


def policy_loss(
    model: Any, groups: list[list[Episode]], start: dict[int, torch.Tensor], rl: dict[str, Any]
) -> torch.Tensor:
    """The step's loss, with the mean of a group's rewards as its baseline."""
    everyone = [one for several in groups for one in several]
    middle = {
        id(one): sum(each.reward for each in several) / len(several)
        for several in groups
        for one in several
    }
    tokens = sum(len(one.said) for one in everyone)
    total = torch.zeros((), dtype=torch.float64)
    kl = torch.zeros((), dtype=torch.float64)
    for one in everyone:
        now = logprobs_of(model, one.ids, one.said, HEAT)
        mu = torch.tensor(one.logprobs, dtype=torch.float64)
        advantage = one.reward - middle[id(one)]
        recomputed = rl.get("old_logprobs") == "recomputed"
        old = now.detach() if recomputed else mu
        ratio, off = (now - old).exp(), (now.detach() - mu).exp()
        match rl["loss"]:
            case "dppo":
                moved = now.detach().exp() - old.exp()
                far = moved > 0.2 if advantage > 0 else moved < -0.2
                terms = -ratio * advantage * ~far + 1e-3 * (now - old) ** 2
            case "grpo" | "dapo" | "dr_grpo":
                high = 1.28 if rl["loss"] == "dapo" else 1.2
                terms = -torch.minimum(ratio * advantage, ratio.clamp(0.8, high) * advantage)
            case "gspo":
                whole = (now - old).mean().exp()
                terms = -torch.minimum(
                    whole * advantage, whole.clamp(1 - 3e-4, 1 + 4e-4) * advantage
                ).expand(len(one.said))
            case "cispo":
                terms = -ratio.detach().clamp(max=5.0) * advantage * now
            case "reinforce":
                terms = -advantage * now
        match rl.get("correction"):
            case "tis":
                terms = terms * off.clamp(max=2.0)
            case "icepop":
                terms = terms * torch.where((off >= 0.5) & (off <= 5.0), off, 0.0)
            case "sequence_mask":
                geometric = off.log().mean().exp()
                terms = terms * (1.0 if 0.5 <= geometric <= 2.0 else 0.0)
        match rl["loss"]:
            case "grpo" | "gspo":
                total = total + terms.mean() / len(everyone)
            case "dr_grpo":
                total = total + terms.sum() / COMMON["micro_tokens"] / len(everyone)
            case _:
                total = total + terms.sum() / tokens
        far = (now - start[id(one)]) ** 2 / 2
        kl = kl + (off.clamp(max=2.0) * far).sum() / tokens
    whole_loss: torch.Tensor = total + rl["kl"] * kl
    return whole_loss


@pytest.mark.parametrize(
    "rl",
    [
        {"loss": "dppo"},
        {"loss": "grpo"},
        {"loss": "dapo", "old_logprobs": "recomputed", "correction": "tis"},
        {"loss": "dr_grpo"},
        {"loss": "gspo"},
        {"loss": "gspo", "correction": "sequence_mask"},
        {"loss": "cispo", "old_logprobs": "recomputed", "correction": "icepop"},
        {"loss": "reinforce", "correction": "tis"},
    ],
    ids=lambda rl: "-".join(map(str, rl.values())),
)
def test_a_step_on_graded_rollouts_is_what_plain_torch_makes_of_them(
    model_of: Any, rendering: Rendering, tmp_path: Path, rl: dict[str, Any]
) -> None:
    rl = rl | {"kl": 0.5}
    settings = TrainSection.model_validate({**COMMON, "algorithm": "grpo", "rl": rl})
    oracle = model_of(attention="sdpa")
    groups = episodes(oracle)
    made = []
    for number, several in enumerate(groups):
        finished = [
            played(
                f"{number}-{k}", [(one.ids[:4], one.ids[4:])], rendering,
                logprobs=one.logprobs, sampling=Sampling(temperature=HEAT),
            )
            for k, one in enumerate(several)
        ]  # fmt: skip
        grades = [rewarded(f"{number}-{k}", one.reward) for k, one in enumerate(several)]
        made.append(group(finished, grades, id=str(number)))
    prepared = grpo(made, Context(rendering, settings))
    assert len(prepared.samples) == 5 and not prepared.refused
    start = {
        id(one): logprobs_of(oracle, one.ids, one.said, HEAT).detach()
        for several in groups
        for one in several
    }
    known = descended(oracle, lambda: policy_loss(oracle, groups, start, rl))
    agree(model_of(), prepared.samples, settings, tmp_path, known)


def tiny() -> Any:
    """The tiny trained model, with an adapter that already does something."""
    model = load_base(TINY, threads=1).model
    draw = torch.Generator().manual_seed(3)
    for each in add_adapter(model, "candidate", rank=4, alpha=8, trainable=True):
        each.data = torch.randn(each.shape, generator=draw) * 0.1
    return model


def test_a_step_on_pairs_is_what_plain_torch_makes_of_them(
    row_of: Any, rendering: Rendering, tmp_path: Path
) -> None:
    rows = []
    for number, (digits, wrong) in enumerate((([3, 1], "9 9 9"), ([4, 2, 5], "4"), ([7, 0], "1"))):
        rows.append(row_of(digits, label="chosen", pair_id=str(number), weight=1.0 + number))
        bad = {"completion": say("assistant", wrong), "tokens": None, "finish_reason": None}
        rows.append(row_of(digits, label="rejected", pair_id=str(number), **bad))
    settings = TrainSection.model_validate(
        {**COMMON, "algorithm": "dpo", "beta": 0.3, "micro_tokens": 96, "learning_rate": 2e-2}
    )
    samples = [
        msgspec.structs.replace(one, weights={"dpo": one.weights["dpo"]})  # the comparison alone
        for one in dpo(rows[::-1], Context(rendering, settings)).samples
    ]
    assert len(samples) == 6
    oracle, pairs = tiny(), []
    for row in rows:
        ids, mask = rendering.render_sample(row.messages, row.completion)
        said = [at for at, kept in enumerate(mask) if kept]
        pairs.append((ids, said, logprobs_of(oracle, ids, said, 1.0).detach().sum()))

    def loss() -> torch.Tensor:
        total = torch.zeros(())
        for number in range(3):
            gained = [
                logprobs_of(oracle, ids, said, 1.0).sum() - start
                for ids, said, start in pairs[2 * number : 2 * number + 2]
            ]
            margin = 0.3 * (gained[0] - gained[1])
            total = total - (1.0 + number) * torch.log(torch.sigmoid(margin)) / 3
        return total

    known = descended(oracle, loss)
    model = tiny()
    use_attention(model, "flywheel_tree", attend)
    agree(model, samples, settings, tmp_path, known)
