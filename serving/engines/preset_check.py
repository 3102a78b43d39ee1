"""Commands of presets: what vLLM is started with, and whether its own argument parser takes that.

Enter: presets, a project's [serving] and its base model. Leave: one command a process, and what
vLLM says to it. No GPU is needed, and nothing is started.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel.errors import EngineError
from flywheel.home import Home
from flywheel.records import Record
from flywheel.serving_section import ServingSection
from serving.engines.presets import Preset, Role, must_suit
from serving.engines.vllm import inherited, python_of
from serving.engines.vllm_command import flags, variables

_WAIT_S = 300.0
_PORT = 8100
"""Of the first process of a printed preset; each one more is a port further."""
MODULE = "vllm.entrypoints.launchers.api_server.entry"
"""What vLLM's Python runs; the `vllm` command itself would take several of its servers where data
is parallel, which do not load adapters as they run."""


class Command(Record, frozen=True, kw_only=True):
    """One process of a preset."""

    role: str
    arguments: tuple[str, ...]
    """After `python -m MODULE`."""
    environment: dict[str, str]
    """Beside the caller's own; the key stands in it by the name of the variable that holds it."""


def commands_of(
    home: Home, preset: Preset, model: Path, serving: ServingSection
) -> tuple[Command, ...]:
    """
    Raises:
        UsageError: [serving] asks for what vLLM cannot do.
        EngineError: the model cannot be read.
    """
    must_suit(preset, serving)
    gpu = serving.model_copy(update={"device": "gpu", "preset": None})
    return tuple(
        _command(home, role, number, model, gpu) for number, role in enumerate(preset.roles)
    )


def complaints(environment: Path, commands: Sequence[Command]) -> list[str | None]:
    """What vLLM's argument parser says to each; None = it takes it.

    Raises:
        MissingPart: vLLM is not installed in `environment`.
        EngineError: it could not be asked.
    """
    python = python_of(environment, None)
    asked = [{"arguments": one.arguments, "environment": one.environment} for one in commands]
    here = Path(__file__).resolve().parent / "check_vllm.py"
    try:
        done = subprocess.run(
            [str(python), "-P", str(here)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            env={**inherited(), **_QUIET},
            cwd=os.path.dirname(here),
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"vLLM's argument parser did not answer in {_WAIT_S:g} s") from error
    if done.returncode:
        raise EngineError(f"vLLM's argument parser could not be asked: {done.stderr[-2000:]}")
    found: list[Any] = json.loads(done.stdout)
    return [None if one is None else str(one) for one in found]


_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def _command(home: Home, role: Role, number: int, model: Path, serving: ServingSection) -> Command:
    set_here = variables(
        model,
        serving,
        key="$FLYWHEEL_ENGINE_KEY",
        threads=1,
        place=home.engine / role.name,
        role=role,
    )
    address = ("--host", "127.0.0.1", "--port", str(_PORT + number))
    return Command(
        role=role.name,
        arguments=(*address, *flags(model, serving, role)),
        # Relative to a folder that we would start it in.
        environment={n: v for n, v in set_here.items() if n != "VLLM_RPC_BASE_PATH"},
    )
