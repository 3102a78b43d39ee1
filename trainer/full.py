"""All weights of a model: freed to learn, and saved so that any engine reads them.

A saved model is untied: its output head has a tensor of its own, for engines that reload a tied
head stale. While it learns, a tied model stays tied.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel import durable
from flywheel.errors import UsageError
from trainer.models import adapters, add_adapter, delete_adapter

_MERGED = "merged"
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".gguf", ".pt", ".pth")
"""Endings of what is not copied from the base model's folder."""


def free(model: Any, adapter: Path | None) -> dict[str, Any]:
    """Lets every parameter learn, from the base weights with `adapter` added into them; returns
    what they start from, by name: kept where it lay, so what is mapped from a file costs nothing.
    """
    if adapter is not None:
        add_adapter(model, _MERGED, adapter)
        merge(model, _MERGED)
    started = {}
    for name, parameter in model.named_parameters():
        started[name] = parameter.detach()
        parameter.data = parameter.detach().clone()
        parameter.requires_grad_(True)
    return started


def merge(model: Any, name: str) -> None:
    """Adds adapter `name` into the base weights (Hu et al. 2021, "LoRA", section 4.1) and takes all
    of peft out of the model."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for path, module in list(model.named_modules()):
        if not isinstance(module, BaseTunerLayer):
            continue
        layer: Any = module
        base = layer.get_base_layer()
        if name in layer.lora_A:
            delta = layer.get_delta_weight(name).detach().to(base.weight.dtype)
            base.weight.data = base.weight.detach() + delta
        parent, _, leaf = path.rpartition(".")
        setattr(model.get_submodule(parent), leaf, base)
    for left in adapters(model):
        delete_adapter(model, left)


def save_model(model: Any, tensors: Mapping[str, Any], base: Path, folder: Path) -> None:
    """Publishes `tensors` (of the model's state_dict, whole) as a model folder beside what else the
    `base` model's has: tokenizer, template; whole or not at all.

    Raises:
        UsageError: the folder is there already.
    """
    import torch
    from safetensors.torch import save_file

    if folder.exists():
        raise UsageError(f"{folder} is there already; a model is never overwritten")
    config = {**model.config.to_dict(), "tie_word_embeddings": False, "dtype": "float32"}
    apart = {
        name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, tensor in tensors.items()
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with durable.no_space(folder):
            for path in base.iterdir():
                if path.is_file() and not path.name.endswith(_WEIGHTS):
                    shutil.copyfile(path, temporary / path.name)
            text = json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"
            (temporary / "config.json").write_text(text, encoding="utf-8")
            save_file(apart, temporary / "model.safetensors", metadata={"format": "pt"})
            os.chmod(temporary, 0o755)
            durable.publish(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
