"""Eight-bit copies of a model's linear layers: `python -m trainer.quantised ORDER.json` makes one.

Enter a base model and, where there is one, an adapter of it; leaves a folder with a whole model in
the format of compressed-tensors (W8A8, "int-quantized"), which vLLM reads and `load_base` too.
Weights are symmetric integers with one scale a row of theirs; activations get one scale a token as
they come: y = (x / s_x) W_q * s_x * s_w, s = max|.| / 127 (Dettmers et al., NeurIPS 2022, section
2; Xiao et al., ICML 2023). Sums of integers are exact, so that an answer's bits do not depend on
what else is in its batch. Embeddings, norms and the output head stay as they are.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, UsageError
from trainer.ordered import carry_out

LARGEST = 127
_GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel",
                "dynamic": False},
    "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token",
                          "dynamic": True},
}  # fmt: skip
METHOD = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": _GROUP},
    "ignore": ["lm_head"],
}
"""As it stands in config.json under `quantization_config`."""
HEAD = "lm_head"
_BESIDE = (".json", ".jinja", ".txt", ".model")
"""Endings of the files that go with the weights."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    base_model: str
    adapter: str | None
    """Folder of weights: an adapter, or a whole model in the base's place; None = the base."""
    out: str
    prompts: tuple[tuple[int, ...], ...] = ()
    """Token ids like those that it will see: what activations are smoothed by."""
    threads: int = 1


def is_quantised(config: Any) -> bool:
    """
    Args:
        config: of transformers.

    Raises:
        CorruptFile: by another method than ours.
    """
    method = getattr(config, "quantization_config", None)
    if method is None:
        return False
    said = method if isinstance(method, dict) else method.to_dict()
    group = said.get("config_groups", {}).get("group_0", {})
    ours = all(
        group.get(name, {}).get(key) == value
        for name in ("weights", "input_activations")
        for key, value in _GROUP[name].items()  # type: ignore[attr-defined]
    )
    if said.get("format") != METHOD["format"] or not ours:
        raise CorruptFile(
            "quantised by another method than W8A8 of compressed-tensors with a scale a token: "
            "`flywheel variant --quantise int8` makes one that is read here"
        )
    return True


def quantise(weight: Any) -> tuple[Any, Any]:
    """[out, in] -> integers of the same shape, and scales [out, 1]."""
    import torch

    scale = weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / LARGEST
    return (weight / scale).round_().to(torch.int8), scale


def int8_linear(linear: Any) -> Any:
    """A layer of the same shape whose weights are integers still to be filled in."""
    import torch

    class Int8Linear(torch.nn.Module):
        weight: torch.Tensor
        weight_scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            out, wide, device = linear.out_features, linear.in_features, linear.weight.device
            self.register_buffer("weight", torch.empty(out, wide, dtype=torch.int8, device=device))
            self.register_buffer("weight_scale", torch.empty(out, 1, device=device))
            self.bias = linear.bias

        def forward(self, x: Any) -> Any:
            """[..., in] -> [..., out], both float32."""
            flat = x.reshape(-1, x.shape[-1])
            scale = flat.abs().amax(-1, keepdim=True).clamp_min(1e-12) / LARGEST
            integers = (flat / scale).round_().to(torch.int8)
            sums = torch._int_mm(integers, self.weight.t()).to(torch.float32)
            made = sums.mul_(scale).mul_(self.weight_scale[:, 0])
            made = made if self.bias is None else made + self.bias
            return made.view(*x.shape[:-1], -1)

    return Int8Linear()


def make_room(model: Any) -> None:
    """Puts layers of integers in the place of the model's linear ones, its head apart."""
    for name, linear in _linears(model):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, int8_linear(linear))


def _linears(model: Any) -> list[tuple[str, Any]]:
    from torch import nn

    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != HEAD
    ]


def write(order: Order) -> None:
    """Publishes the folder, whole or not at all.

    Raises:
        UsageError: the weights are quantised already.
        MissingPart, CorruptFile: they cannot be read.
    """
    from safetensors.torch import save

    from trainer.models import add_adapter, is_whole, load_base
    from trainer.smoothing import smooth

    folder = Path(order.adapter) if order.adapter else None
    whole = folder is not None and is_whole(folder)
    source = folder if folder is not None and whole else Path(order.base_model)
    model = load_base(source, threads=order.threads).model
    if folder is not None and not whole:
        add_adapter(model, "merged", folder)
        model = _merged(model)
    smooth(model, order.prompts)
    if is_quantised(model.config):
        raise UsageError(f"{source} is quantised already")
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    names = {name for name, _ in _linears(model)}
    tensors: dict[str, Any] = {}
    for key, tensor in model.state_dict().items():
        if key in tied and model.config.tie_word_embeddings:
            continue
        name, _, last = key.rpartition(".")
        if last == "weight" and name in names:
            tensors[key], tensors[f"{name}.weight_scale"] = quantise(tensor.float())
        else:
            tensors[key] = tensor.contiguous()
    out = Path(order.out)
    made = out.with_name(f".{out.name}.making")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    with durable.no_space(out):
        for file in source.iterdir():
            if file.suffix in _BESIDE and not file.name.endswith(".index.json"):
                shutil.copyfile(file, made / file.name)
        (made / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        config = json.loads((source / "config.json").read_bytes()) | {"quantization_config": METHOD}
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        durable.publish(made, out)


def _merged(model: Any) -> Any:
    """The model with its one adapter's product added to its weights, and no adapter any more."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, module.get_base_layer())
    model.peft_config = {}
    return model


if __name__ == "__main__":
    sys.exit(carry_out(sys.argv[1:], Order, write))
