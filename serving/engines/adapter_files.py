"""What can be told of an adapter from its files, before an engine is asked to load it.

Enter: a folder in peft's format, the base model's folder, the largest rank. Leaves: why no vLLM
could serve it as it was trained, or None. Only headers and numbers are read; no torch.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile

_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_HEADER = 64 * 2**20
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_BF16_EXPONENT = 0x7F80


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Config(msgspec.Struct):
    r: Annotated[int, msgspec.Meta(ge=1)] = 8
    lora_alpha: Annotated[float, msgspec.Meta(gt=0)] = 8.0
    peft_type: str = "LORA"
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layer_replication: list[Any] | None = None
    alora_invocation_tokens: list[int] | None = None
    use_qalora: bool = False
    use_bdlora: dict[str, Any] | None = None
    rank_pattern: dict[str, Annotated[int, msgspec.Meta(ge=1)]] | None = None
    alpha_pattern: dict[str, Annotated[float, msgspec.Meta(gt=0)]] | None = None
    modules_to_save: list[str] | None = None
    use_dora: bool = False
    bias: str = "none"
    lora_bias: bool = False


def misfit(name: str, folder: Path, *, model: Path | None, max_rank: int | None) -> str | None:
    """Why `folder` cannot be served as the model `name`; None = nothing says so.

    Args:
        model: the base model's folder; None, or one without weights: modules are not compared.

    Raises:
        CorruptFile: its files are not an adapter's, or are cut short.
    """
    if not name.isprintable() or not 0 < len(name) <= 200 or name == "base" or "." in name:
        return f"{name!r} cannot be its name"
    config = _config(folder)
    if config.peft_type != "LORA" or config.use_dora or config.lora_bias or config.bias != "none":
        return f"{folder}: only plain LoRA adapters can be served (no DoRA, no bias)"
    if config.modules_to_save:
        return (
            f"{folder} replaces whole modules ({', '.join(config.modules_to_save)}): train "
            "without modules_to_save"
        )
    if (other := _no_plain_lora(config)) is not None:
        return f"{folder}: only plain LoRA adapters can be served, and it sets {other}"
    largest = max([config.r, *(config.rank_pattern or {}).values()])
    if max_rank is not None and largest > max_rank:
        return (
            f"{folder} has rank {largest} and the engine makes room for {max_rank}: raise "
            "max_rank in [serving] and start the server again (--max-lora-rank, where somebody "
            "else runs the vLLM), or train with a lower rank"
        )
    entries = tensors_of(folder / _WEIGHTS)
    other = _unlike(entries, config)
    if other is not None:
        return f"the config of {folder} is not of its weights: {other}"
    known = _modules(model) if model is not None else {}
    unknown = _unknown(entries, known) if known else None
    if unknown is not None:
        return f"{folder} does not fit the base model: {unknown}"
    return _not_finite(folder / _WEIGHTS, entries)


def linear_modules(model: Path) -> list[str]:
    """Last names of the base model's linear layers, the output head left out: what adapters of
    ours are made of."""
    return sorted(
        {
            module.rpartition(".")[2]
            for module, shape in _modules(model).items()
            if len(shape) == 2 and ".layers." in f".{module}."
        }
    )


def copied(folder: Path, place: Path) -> Path:
    """A copy of `folder` that is named by its content and that nobody changes.

    vLLM tells the path that it loaded a name from: so it tells the weights. And it reads an adapter
    again, in silence, when it had to make room for others: so it finds the same ones.
    """
    from trainer.models import digest_of

    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=".") as under_way:
        made = Path(under_way) / "adapter"
        made.mkdir()
        with durable.no_space(place):
            for name in (_CONFIG, _WEIGHTS):
                shutil.copyfile(folder / name, made / name)
        final = place / digest_of(made)
        try:
            os.rename(made, final)
        except OSError:
            if not final.is_dir():  # else the same was copied before
                raise
    return final


def forget_copy(copy: Path, loaded: Collection[str | None]) -> None:
    """Removes what `copied` made, unless something is `loaded` from it under another name."""
    if str(copy) not in loaded:
        shutil.rmtree(copy, ignore_errors=True)


def tensors_of(path: Path) -> dict[str, _Entry]:
    """Name, type, shape and place of each tensor of a safetensors file.

    Raises:
        CorruptFile: it is none, or is cut short.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _HEADER:
                raise ValueError("no header")
            header: dict[str, Any] = msgspec.json.decode(file.read(length))
            header.pop("__metadata__", None)
            entries = msgspec.convert(header, dict[str, _Entry])
        end = max((entry.data_offsets[1] for entry in entries.values()), default=0)
        if path.stat().st_size != 8 + length + end:
            raise ValueError("it is cut short")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptFile(f"{path} is not a whole safetensors file ({error})") from error
    return entries


def _config(folder: Path) -> _Config:
    path = folder / _CONFIG
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Config)
    except (OSError, msgspec.MsgspecError) as error:
        raise CorruptFile(f"{path} cannot be read: {error}") from error


def _modules(model: Path) -> dict[str, tuple[int, ...]]:
    """The base model's weights by the names of their modules."""
    return {
        name.removesuffix(".weight"): entry.shape
        for path in sorted(model.glob("*.safetensors"))
        for name, entry in tensors_of(path).items()
        if name.endswith(".weight")
    }


def _no_plain_lora(config: _Config) -> str | None:
    others = ("alora_invocation_tokens", "layer_replication", "use_bdlora", "use_qalora")
    return next((name for name in others if getattr(config, name)), None)


def _unlike(entries: dict[str, _Entry], config: _Config) -> str | None:
    """Where an adapter's weights are others than its config says."""
    if not entries:
        return "it has no weights"
    for name, entry in entries.items():
        module, found, side = name.removeprefix(_PREFIX).partition(".lora_")
        if not found or side not in ("A.weight", "B.weight"):
            return f"{name} is no part of a LoRA adapter"
        if len(entry.shape) != 2:
            return f"{name} has {len(entry.shape)} dimensions, a LoRA matrix has 2"
        rank, said = entry.shape[0 if side[0] == "A" else 1], _rank_of(module, config)
        if rank != said:
            return f"{name} has rank {rank}, and its config says {said}"
        if not _targeted(module, config):
            return f"it has weights of {module}, which its config leaves out"
    return None


def _rank_of(module: str, config: _Config) -> int:
    """By peft's rule: the first pattern that is an end of the module's name, else r."""
    patterns = config.rank_pattern or {}
    found = (rank for end, rank in patterns.items() if _matches(rf"(.*\.)?({end})", module))
    return next(found, config.r)


def _targeted(module: str, config: _Config) -> bool:
    """Whether the config names the module; peft's own rules."""
    if _named(module, config.exclude_modules):
        return False
    layers, targets = config.layers_to_transform, config.target_modules
    if layers is not None:
        number = re.search(r"\.layers\.(\d+)\.", module)
        wanted = [layers] if isinstance(layers, int) else layers
        if number is None or int(number[1]) not in wanted:
            return False
    return targets in (None, "all-linear") or _named(module, targets)


def _named(module: str, names: list[str] | str | None) -> bool:
    if isinstance(names, str):
        return _matches(names, module)
    return any(module == one or module.endswith(f".{one}") for one in names or ())


def _matches(pattern: str, module: str) -> bool:
    try:
        return re.fullmatch(pattern, module) is not None
    except re.error:
        return False


def _unknown(entries: dict[str, _Entry], known: dict[str, tuple[int, ...]]) -> str | None:
    for name, entry in entries.items():
        module, _, side = name.removeprefix(_PREFIX).partition(".lora_")
        shape = known.get(module)
        if shape is None:
            return f"the base model has no module {module}"
        if module.endswith(("lm_head", "embed_tokens")):
            return f"{module} cannot be adapted, only the linear layers before the output head"
        width = entry.shape[1] if side[0] == "A" else entry.shape[0]
        if width != (shape[1] if side[0] == "A" else shape[0]):
            return f"{name} is {entry.shape}, and {module} of the base model is {shape}"
    return None


def _not_finite(path: Path, entries: dict[str, _Entry]) -> str | None:
    return next(
        (
            f"{path}: {name} has weights that are not finite numbers"
            for name, finite in _finite(path, entries)
            if not finite
        ),
        None,
    )


def _finite(path: Path, entries: dict[str, _Entry]) -> Iterator[tuple[str, bool]]:
    import numpy

    data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    for name, entry in entries.items():
        if entry.dtype not in _TYPES:
            raise CorruptFile(f"{path}: {name} is {entry.dtype}, not floating point")
        first, last = entry.data_offsets
        values = data[begin + first : begin + last].view(_TYPES[entry.dtype])
        if entry.dtype == "BF16":
            yield name, bool(((values & _BF16_EXPONENT) != _BF16_EXPONENT).all())
        else:
            yield name, bool(numpy.isfinite(values).all())


def is_tied(model: Path) -> bool:
    """Whether the output head of the model in `model` is its embeddings."""
    try:
        config = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptFile(f"{model / 'config.json'} cannot be read: {error}") from error
    return bool(config.get("tie_word_embeddings", False))
