"""Base models and their adapters: the only place that loads weights.

In: a folder with config.json, *.safetensors and a tokenizer. Out: a causal model whose weights are
mapped from the file, so that the engine's and the trainer's processes share one copy in memory, and
LoRA adapters side by side on it, one active at a time.
Invariant: base weights are frozen and never written; only an adapter's own matrices change.
Longer than most: serving may import this module alone, so loading and adapters stand together.
"""

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flywheel import durable
from flywheel.errors import CorruptFile, MissingPart, UsageError

_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
"""What peft's files put before the name of every module."""
_NO_MATTER = frozenset(("inference_mode", "lora_dropout", "peft_version"))
_SETS = frozenset(("target_modules", "exclude_modules", "modules_to_save"))
"""Of an adapter's config: what does not change the model, and lists whose order does not."""


@dataclass(frozen=True)
class Base:
    folder: Path
    model: Any
    """The transformers causal model, in float32 and eval mode."""
    tokenizer: Any


def load_base(folder: Path, *, threads: int | None = None) -> Base:
    """The model of `folder`; `threads` sets torch's for this process.

    Raises:
        MissingPart: the folder or a needed file is not there.
        CorruptFile: weights that are cut short, missing, unknown or of the wrong shape.
    """
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    from trainer.quantised import is_quantised, make_room

    if threads is not None:
        torch.set_num_threads(threads)
    config = _read_config(folder)
    if hasattr(config, "vision_config"):
        model = _seeing(folder)
    else:
        with init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=torch.float32, attn_implementation="sdpa"
            )
            if is_quantised(config):
                make_room(model)
        _assign(model, _mapped_tensors(folder), folder)
    model.requires_grad_(False)
    return Base(folder, model.eval(), load_tokenizer(folder))


def _seeing(folder: Path) -> Any:
    """A model that sees, with what makes numbers of its pictures. Its files name weights otherwise
    than its modules do, so they are read by transformers, into memory of this process."""
    import torch
    from transformers import AutoModelForImageTextToText

    from trainer.pictures import load_processor

    try:
        model: Any = AutoModelForImageTextToText.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
        model.image_processor = load_processor(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"{folder}: the model that sees cannot be read: {error}") from error
    return model


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    _require(folder, "tokenizer.json")
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"{folder}: the tokenizer cannot be read: {error}") from error


def is_whole(folder: Path) -> bool:
    """Whether it holds a whole model rather than an adapter."""
    return (folder / "config.json").is_file() and not (folder / _CONFIG).is_file()


def digest_of(folder: Path) -> str:
    """32 hex digits over the weight files of a base or an adapter, names and bytes, and over what
    an adapter's config says of the model that they make.

    Raises:
        MissingPart: no weights.
        CorruptFile: the adapter's config cannot be read.
    """
    return digests_of(folder)[0]


def digests_of(folder: Path) -> tuple[str, str]:
    """`digest_of`, and the digest of the weights alone: checkpoints of older homes are named so."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise MissingPart(f"{folder} has no weights (*.safetensors)")
    whole = blake2b(digest_size=16)
    for path in files:
        whole.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                whole.update(block)
    weights = whole.hexdigest()
    if (folder / _CONFIG).is_file():
        whole.update(b"\0" + _canonical_config(folder / _CONFIG))
    return whole.hexdigest(), weights


def _canonical_config(path: Path) -> bytes:
    """The same bytes for configs that make the same model of the same weights: without what only
    training or peft itself looks at, whatever the order and whether a None is spelled out."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CorruptFile(f"{path} is not an adapter's config")
    said = {
        key: sorted(value, key=str) if key in _SETS and isinstance(value, list) else value
        for key, value in config.items()
        if key not in _NO_MATTER and value is not None
    }
    return json.dumps(said, sort_keys=True).encode()


def add_adapter(
    model: Any,
    name: str,
    folder: Path | None = None,
    *,
    rank: int = 8,
    alpha: int = 16,
    seed: int = 0,
    trainable: bool = False,
) -> list[Any]:
    """Puts an adapter beside those already there and makes it the active one.

    From `folder` where it is given (rank and alpha are then its own), else a new one that changes
    nothing yet, initialised from `seed`, on every linear layer but the output head. Returns its
    parameters in a fixed order; they require gradients where `trainable`.

    Raises:
        UsageError: the name is taken or cannot be used.
        MissingPart, CorruptFile: the folder is not an adapter of this model.
    """
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    if name in adapters(model) or name in ("", "base") or "." in name:
        raise UsageError(f"adapter name {name!r} is taken, empty, 'base', or has a dot in it")
    if folder is None:
        config = LoraConfig(
            r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        weights = None
    else:
        config, weights = _read_adapter(folder)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model, name)
        except (ValueError, KeyError, TypeError) as error:
            delete_adapter(model, name)
            raise CorruptFile(f"{folder}: does not fit this model: {error}") from error
    if weights is not None:
        try:
            _fill(model, name, weights, folder)
        except CorruptFile:
            delete_adapter(model, name)
            raise
    model.eval()
    use_adapter(model, name)
    parameters = [parameter for _, parameter in _parameters(model, name)]
    for parameter in parameters:
        parameter.requires_grad_(trainable)
    return parameters


def adapters(model: Any) -> list[str]:
    return list(getattr(model, "peft_config", {}))


def use_adapter(model: Any, name: str | None) -> None:
    """From now on forward passes go through adapter `name`; None = the base model alone."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    if name is not None and name not in adapters(model):
        raise UsageError(f"no adapter {name!r} is loaded; there are {adapters(model)}")
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        if name is None:
            layer._disable_adapters = True
        else:
            # Set directly: the public switch also turns gradients on and off on all adapters.
            layer._disable_adapters = False
            layer._active_adapter = name


def use_attention(model: Any, name: str, attend: Any) -> None:
    """Makes the model's layers call `attend` (transformers' attention interface) in place of their
    own attention. No mask is built for it; further keyword arguments of a forward pass reach it."""
    from transformers import AttentionInterface

    AttentionInterface.register(name, attend)
    model.set_attn_implementation(name)


def delete_adapter(model: Any, name: str) -> None:
    """Frees an adapter; where it was active, the base model alone is used next."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    if name not in adapters(model):
        raise UsageError(f"no adapter {name!r} is loaded; there are {adapters(model)}")
    was_active = False
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            was_active = was_active or name in module.active_adapters
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Adapter .* was active")
                module.delete_adapter(name)
    model.peft_config.pop(name, None)
    if was_active:
        use_adapter(model, None)


def adapter_tensors(model: Any, name: str) -> dict[str, Any]:
    """An adapter's matrices by the names that they have in its file, but for its prefix."""
    return {key: parameter.detach() for key, parameter in _parameters(model, name)}


def save_adapter(
    model: Any, name: str, folder: Path, tensors: dict[str, Any] | None = None
) -> None:
    """Publishes an adapter in peft's format, whole or not at all; an existing folder is kept.

    `tensors` are its matrices where the model's own are not whole here. Keys carry no adapter name:
    that is the form that peft and vLLM read.
    """
    import torch
    from safetensors.torch import save

    if folder.exists():
        raise UsageError(f"{folder} is there already; an adapter is never overwritten")
    config = model.peft_config[name]
    settings = config.to_dict()
    settings["target_modules"] = sorted(config.target_modules)
    settings["inference_mode"] = True
    settings["base_model_name_or_path"] = None
    written = {
        _PREFIX + key: tensor.to("cpu", torch.float32, copy=True).contiguous()
        for key, tensor in (tensors or adapter_tensors(model, name)).items()
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with durable.no_space(folder):
            (temporary / _WEIGHTS).write_bytes(save(written, metadata={"format": "pt"}))
            text = json.dumps(settings, indent=2, sort_keys=True, default=_plain) + "\n"
            (temporary / _CONFIG).write_text(text, encoding="utf-8")
            os.chmod(temporary, 0o755)
            durable.publish(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)


def _require(folder: Path, *names: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        what = f"lacks {', '.join(missing)}" if folder.is_dir() else "is not there"
        raise MissingPart(
            f"model folder {folder} {what}: `make model` brings the demo's model; "
            "for another, put its folder there or set FLYWHEEL_MODELS"
        )


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    _require(folder, "config.json", "tokenizer.json")
    if not list(folder.glob("*.safetensors")):
        _require(folder, "model.safetensors")
    try:
        return AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"{folder / 'config.json'} cannot be used: {error}") from error


def _mapped_tensors(folder: Path) -> dict[str, Any]:
    """Tensors that are views into the mapped files: pages are read when touched, and shared."""
    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(_read_safetensors(path))
    return tensors


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise CorruptFile(
            f"{path} is not a whole safetensors file ({error}): delete it and bring it again"
        ) from error


def _assign(model: Any, tensors: dict[str, Any], folder: Path) -> None:
    import torch

    whole = {
        key: tensor if tensor.dtype in (torch.float32, torch.int8) else tensor.to(torch.float32)
        for key, tensor in tensors.items()
    }
    try:
        result = model.load_state_dict(whole, strict=False, assign=True)
    except RuntimeError as error:
        raise CorruptFile(f"{folder}: weights do not fit config.json: {error}") from error
    missing = set(result.missing_keys)
    if model.config.tie_word_embeddings:
        model.tie_weights()
        missing -= set(getattr(model, "_tied_weights_keys", None) or ())
    if missing or result.unexpected_keys:
        raise CorruptFile(
            f"{folder}: weights missing {sorted(missing)[:3]}, unknown "
            f"{sorted(result.unexpected_keys)[:3]}: not the weights of its config.json"
        )


def _read_adapter(folder: Path) -> tuple[Any, dict[str, Any]]:
    from peft import LoraConfig, PeftConfig

    for needed in (_CONFIG, _WEIGHTS):
        if not (folder / needed).is_file():
            raise MissingPart(f"adapter folder {folder} has no {needed}")
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"{folder / _CONFIG} cannot be read: {error}") from error
    if not isinstance(config, LoraConfig) or config.modules_to_save or config.use_dora:
        raise CorruptFile(
            f"{folder}: only plain LoRA adapters can be served (no modules_to_save, no DoRA)"
        )
    return config, _read_safetensors(folder / _WEIGHTS)


def _fill(model: Any, name: str, weights: dict[str, Any], folder: Path | None) -> None:
    import torch

    own = dict(_parameters(model, name))
    given = {key.removeprefix(_PREFIX): tensor for key, tensor in weights.items()}
    if own.keys() != given.keys():
        difference = sorted(own.keys() ^ given.keys())
        raise CorruptFile(f"{folder}: adapter and model differ in {difference[:3]}")
    for key, parameter in own.items():
        if parameter.shape != given[key].shape:
            raise CorruptFile(
                f"{folder}: {key} is {tuple(given[key].shape)}, the model needs "
                f"{tuple(parameter.shape)}"
            )
        with torch.no_grad():
            parameter.copy_(given[key])


def _parameters(model: Any, name: str) -> Iterator[tuple[str, Any]]:
    """An adapter's own matrices under their names in its file, in the model's order."""
    ending = f".{name}.weight"
    for key, parameter in model.named_parameters():
        if ".lora_" in key and key.endswith(ending):
            yield key.removesuffix(ending) + ".weight", parameter
