"""Sets of vLLM arguments for GPUs, by name: files in `presets/` here, or in the home's `presets/`.

Enter: TOML. `[arguments]` are vLLM's, spelled without the dashes; a table is handed on as JSON.
`[environment]` are variables beside ours. `[roles.NAME]` makes several processes of one preset,
each with its own on top. Invariant: what the rest of Flywheel relies on, no preset may set.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Record
from flywheel.serving_section import ServingSection

_OURS = Path(__file__).resolve().parent / "presets"
_MOST = 64 * 2**10
"""Bytes of a file."""
RESERVED = frozenset(
    {
        "model", "served-model-name", "host", "port", "uds", "api-key", "api-server-count",
        "headless", "config", "logprobs-mode", "generation-config", "enable-lora",
        "max-lora-rank", "lora-target-modules", "lora-modules", "dtype", "max-model-len",
        "chat-template", "tool-call-parser", "enable-auto-tool-choice", "tool-parser-plugin",
        "speculative-config", "tokenizer",
    }
)  # fmt: skip
"""Arguments that are ours or [serving]'s: names, ports, adapters, probabilities, templates."""

Words = list[str | int | float]
Value = bool | int | float | str | Words | dict[str, Any]
Arguments = dict[str, Value]
_Count = Annotated[int, Meta(ge=1, le=4096)]


class _Role(msgspec.Struct, forbid_unknown_fields=True):
    gpus: list[Annotated[int, Meta(ge=0)]] = []
    arguments: Arguments = {}
    environment: dict[str, str] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    about: str
    gpus: _Count
    needs: str | None = None
    arguments: Arguments = {}
    environment: dict[str, str] = {}
    roles: dict[str, _Role] = {}


class Role(Record, frozen=True, kw_only=True):
    """One process of a preset."""

    name: str
    """"engine" where there is only one."""
    arguments: Arguments
    environment: dict[str, str]


class Preset(Record, frozen=True, kw_only=True):
    name: str
    about: str
    gpus: int
    """That all of its processes take together, on one machine."""
    needs: str | None
    """What there must be besides; None = nothing."""
    roles: tuple[Role, ...]


def names(home: Home) -> list[str]:
    """Of all presets; one of the home's goes before one of ours."""
    return sorted({path.stem for place in _places(home) for path in place.glob("*.toml")})


def read_preset(home: Home, name: str) -> Preset:
    """
    Raises:
        UsageError: there is none of this name, or its file cannot be used; says where it is wrong.
    """
    path = next((place / f"{name}.toml" for place in _places(home) if name in _in(place)), None)
    if path is None:
        there = ", ".join(names(home))
        raise UsageError(f"no preset {name!r}; there are: {there} (own ones: {_own(home)}/*.toml)")
    try:
        if path.stat().st_size > _MOST:
            raise ValueError(f"it is larger than {_MOST} bytes")
        file = msgspec.toml.decode(path.read_bytes(), type=_File)
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise UsageError(f"the preset {path} cannot be used: {error}") from error
    preset = _preset(name, file)
    if (why := _unfit(preset)) is not None:
        raise UsageError(f"the preset {path} cannot be used: {why}")
    return preset


def role_of(home: Home, serving: ServingSection) -> Role | None:
    """The one process of the preset that [serving] names; None = it names none.

    Raises:
        UsageError: there is no such preset, or we cannot start it as one engine on GPUs.
    """
    if serving.preset is None:
        return None
    preset = read_preset(home, serving.preset)
    must_suit(preset, serving)
    if serving.device != "gpu":
        raise UsageError(f'the preset {preset.name} is for GPUs: [serving] device = "gpu"')
    if len(preset.roles) > 1:
        roles = " and ".join(role.name for role in preset.roles)
        raise UsageError(
            f"the preset {preset.name} is several processes ({roles}): `flywheel preset "
            f"{preset.name} PROJECT` prints them; start them and what stands in front of them, "
            "and name its address as engine_url in [serving], without the preset"
        )
    return preset.roles[0]


def must_suit(preset: Preset, serving: ServingSection) -> None:
    """
    Raises:
        UsageError: it quantises, and [serving] says float32.
    """
    if serving.dtype == "float32" and any("quantization" in one.arguments for one in preset.roles):
        raise UsageError(
            f"the preset {preset.name} quantises, which vLLM does not do beside float32: "
            '[serving] dtype = "bfloat16"'
        )


def spelled(arguments: Arguments) -> list[str]:
    """As vLLM's command line has them."""
    words: list[str] = []
    for name, value in arguments.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, dict):
            words += [f"--{name}", msgspec.json.encode(value).decode()]
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def _own(home: Home) -> Path:
    return home.root / "presets"


def _places(home: Home) -> tuple[Path, Path]:
    return _own(home), _OURS


def _in(place: Path) -> set[str]:
    return {path.stem for path in place.glob("*.toml")}


def _preset(name: str, file: _File) -> Preset:
    roles = file.roles or {"engine": _Role()}
    return Preset(
        name=name,
        about=file.about,
        gpus=file.gpus,
        needs=file.needs,
        roles=tuple(
            Role(
                name=role_name,
                arguments={**file.arguments, **role.arguments},
                environment={**file.environment, **_seen(role), **role.environment},
            )
            for role_name, role in roles.items()
        ),
    )


def _seen(role: _Role) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, role.gpus))} if role.gpus else {}


def _unfit(preset: Preset) -> str | None:
    for role in preset.roles:
        for name in role.arguments:
            plain = name.removeprefix("no-")
            if name.startswith("-") or "_" in name:
                return f"{name}: arguments are written without leading dashes, with - between words"
            if plain in RESERVED:
                return f"{plain} is not a preset's to set: it is Flywheel's own, or [serving]'s"
    return None
