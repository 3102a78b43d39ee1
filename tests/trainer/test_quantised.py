"""Eight-bit copies: what they hold, what they say, and that rows do not touch one another."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.errors import CorruptFile, UsageError
from trainer.models import add_adapter, load_base, save_adapter
from trainer.quantised import LARGEST, Order, quantise, write
from trainer.smoothing import smooth

TINY = Path(__file__).resolve().parents[1] / "sorting" / "base"
PROMPTS = tuple(tuple(20 + (i * k) % 90 for i in range(40)) for k in (1, 3, 7))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8") / "model"
    write(Order(base_model=str(TINY), adapter=None, out=str(out), prompts=PROMPTS))
    return out


def logprobs(model: Any, ids: Any) -> Any:
    with torch.inference_mode():
        return model(ids).logits.log_softmax(-1)


def test_a_weight_is_off_by_half_a_step_at_most() -> None:
    weight = torch.randn(8, 32)
    integers, scale = quantise(weight)
    assert integers.dtype == torch.int8 and int(integers.abs().max()) == LARGEST
    assert (weight - integers * scale).abs().max() <= scale.max() / 2 + 1e-6


def test_the_copy_says_nearly_what_the_model_says(made: Path) -> None:
    ids = torch.tensor(PROMPTS)
    ours, theirs = (logprobs(load_base(one).model, ids) for one in (TINY, made))
    divergence = (ours.exp() * (ours - theirs)).sum(-1).mean()
    assert 0 <= divergence < 0.05
    assert ours.argmax(-1).eq(theirs.argmax(-1)).float().mean() > 0.9


def test_a_rows_bits_do_not_depend_on_its_batch(made: Path) -> None:
    from trainer.quantised import int8_linear

    linear = torch.nn.Linear(64, 48)
    layer = int8_linear(linear)
    layer.weight, layer.weight_scale = quantise(linear.weight.detach())
    rows = torch.randn(33, 64)
    whole = layer(rows)
    assert all(torch.equal(layer(rows[at : at + 1])[0], whole[at]) for at in range(33))
    assert (whole - linear(rows)).abs().max() < 0.05


def test_smoothing_changes_nothing_that_is_said() -> None:
    plain, smoothed = load_base(TINY).model, load_base(TINY).model
    smooth(smoothed, PROMPTS)
    first = next(iter(smoothed.get_decoder().layers)).input_layernorm.weight
    assert not torch.equal(first, next(iter(plain.get_decoder().layers)).input_layernorm.weight)
    ids = torch.tensor(PROMPTS)
    assert (logprobs(plain, ids) - logprobs(smoothed, ids)).abs().max() < 1e-3


def test_an_adapter_is_merged_into_the_copy(tmp_path: Path) -> None:
    model = load_base(TINY).model
    for parameter in add_adapter(model, "x"):
        parameter.data.normal_(0, 0.05)
    save_adapter(model, "x", tmp_path / "adapter")
    out = tmp_path / "model"
    write(Order(base_model=str(TINY), adapter=str(tmp_path / "adapter"), out=str(out),
                prompts=PROMPTS))  # fmt: skip
    ids = torch.tensor(PROMPTS)
    ours, theirs, base = (
        logprobs(one, ids) for one in (model, load_base(out).model, load_base(TINY).model)
    )
    assert (ours - theirs).abs().mean() < 0.3 * (ours - base).abs().mean()


def test_another_method_and_a_second_time_are_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already"):
        write(Order(base_model=str(made), adapter=None, out=str(tmp_path / "again")))
    other = tmp_path / "other"
    other.mkdir()
    for file in made.iterdir():
        (other / file.name).symlink_to(file)
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"]["format"] = "pack-quantized"
    (other / "config.json").unlink()
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptFile, match="another method"):
        load_base(other)
