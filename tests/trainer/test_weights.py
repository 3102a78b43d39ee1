import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.train_section import TrainSection
from trainer.feed import Epochs
from trainer.forward import trained_logprobs
from trainer.full import merge
from trainer.loop import train
from trainer.models import adapters, load_base
from trainer.packing import lay_out
from trainer.parallel import ALONE
from trainer.probe import ProbePair, probe_logprobs
from trainer.samples import Sample
from trainer.weights import Weights, start

TINY = Path(__file__).resolve().parents[1] / "sorting" / "base"
PAIRS = [ProbePair((1, 2, 3), (4, 5)), ProbePair((6,), (7, 8, 9))]


def started(settings: TrainSection, init: Path | None = None) -> Weights:
    torch.use_deterministic_algorithms(False)
    return start(load_base(TINY, threads=1), settings, init, 0, ALONE)


def moved(weights: Weights, by: float = 0.01) -> None:
    with torch.no_grad():
        for parameter in weights.learning.values():
            parameter.add_(by)
    weights.moved()


@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_weights_that_a_run_starts_from_stay_at_hand(method: str) -> None:
    weights = started(TrainSection(method=method))
    before = weights.apply(probe_logprobs, PAIRS)
    moved(weights)
    after = weights.apply(probe_logprobs, PAIRS)
    assert after != before
    with weights.as_started():
        assert weights.apply(probe_logprobs, PAIRS) == before
    assert weights.apply(probe_logprobs, PAIRS) == after


def test_all_weights_learn_and_are_saved_as_an_untied_model(
    row_of: Any, rendering: Any, tmp_path: Path
) -> None:
    weights = started(TrainSection(method="full"))
    assert len(weights.learning) == len(list(weights.model.parameters()))
    moved(weights)
    weights.save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    saved = load_base(tmp_path / "model", threads=1)
    assert saved.model.lm_head.weight is not saved.model.model.embed_tokens.weight
    learnt = weights.apply(probe_logprobs, PAIRS)  # whose layers are fused: other last bits
    for one, other in zip(probe_logprobs(saved.model, PAIRS), learnt, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert saved.tokenizer.get_vocab() == load_base(TINY).tokenizer.get_vocab()


def test_the_base_models_file_is_never_written() -> None:
    before = (TINY / "model.safetensors").read_bytes()
    moved(started(TrainSection(method="full")))
    assert (TINY / "model.safetensors").read_bytes() == before


def test_full_weights_go_on_from_the_champions_adapter(tmp_path: Path) -> None:
    champion = started(TrainSection())
    moved(champion)
    champion.save(tmp_path / "adapter")
    weights = started(TrainSection(method="full"), tmp_path / "adapter")
    assert adapters(weights.model) == []
    for one, other in zip(
        weights.apply(probe_logprobs, PAIRS), champion.apply(probe_logprobs, PAIRS), strict=True
    ):
        assert one == pytest.approx(other, abs=1e-5)


def test_an_adapter_is_merged_to_the_same_numbers(model_of: Any) -> None:
    model = model_of(attention="sdpa")
    before = probe_logprobs(model, PAIRS)
    merge(model, "candidate")
    assert not any("lora" in name for name, _ in model.named_parameters())
    for one, other in zip(probe_logprobs(model, PAIRS), before, strict=True):
        assert one == pytest.approx(other, abs=1e-9)


def test_the_average_follows_and_is_what_is_kept(model: Any) -> None:
    weights = Weights(model, ema=0.75)
    name = next(iter(weights.learning))
    first = weights.learning[name].detach().clone()
    moved(weights, by=1.0)
    moved(weights, by=1.0)
    with weights.as_kept():
        torch.testing.assert_close(
            weights.learning[name].detach(), first + 0.25 + 0.75 * 0.25 + 0.25
        )
    torch.testing.assert_close(weights.learning[name].detach(), first + 2.0)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_bfloat16_passes_change_little_and_what_learns_stays_float32(
    method: str, sample_of: Any
) -> None:
    sample = sample_of("row", [5, 6, 7], [8, 9, 10])
    found = []
    for compute in ("float32", "bfloat16"):
        weights = started(TrainSection(method=method, compute=compute))
        logprobs = weights.apply(trained_logprobs, lay_out([sample]))
        logprobs.sum().backward()
        assert {each.dtype for each in weights.learning.values()} == {torch.float32}
        assert {each.grad.dtype for each in weights.learning.values() if each.grad is not None} == {
            torch.float32
        }
        found.append(logprobs.detach().float())
    assert not torch.equal(*found)
    torch.testing.assert_close(*found, rtol=0.02, atol=0.1)


def test_a_whole_model_learns_what_an_adapter_learns(
    row_of: Any, rendering: Any, tmp_path: Path
) -> None:
    from trainer.algorithms.contract import Context
    from trainer.algorithms.rejection import rejection

    settings = TrainSection(
        method="full", epochs=2, batch=4, learning_rate=1e-4, checkpoint_every=3, ema=0.5
    )
    rows = [row_of([one, 3, one]) for one in range(8)]
    samples: tuple[Sample, ...] = rejection(rows, Context(rendering, settings)).samples

    def run(folder: str, steps: int | None = None) -> tuple[Weights, Any]:
        weights, feed = started(settings), Epochs(samples, settings)
        if steps is not None:
            feed = _Cut(samples, settings, steps)
        done = train(weights, feed, settings, tmp_path / folder, job="j", activation_bytes=1 << 30)
        return weights, done

    whole, done = run("whole")
    assert done.last_loss < done.first_loss
    run("cut", steps=3)
    again, resumed = run("cut")
    assert resumed.last_loss == done.last_loss
    assert whole.average is not None and again.average is not None
    for name, parameter in whole.learning.items():
        assert torch.equal(parameter, again.learning[name])
        assert torch.equal(whole.average[name], again.average[name])


class _Cut(Epochs):
    """Ends early, after a checkpoint, as a kill would."""

    def __init__(self, samples: Any, settings: TrainSection, steps: int) -> None:
        super().__init__(samples, settings)
        self._last = steps

    def take(self, step: int) -> Any:
        return super().take(step) if step <= self._last else None
