"""The kinds of runtimes, each a file beside this one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.runtimes.container import ContainerRuntime
from environments.runtimes.contract import Runtime, RuntimeConfig
from environments.runtimes.sandbox import SandboxRuntime
from environments.runtimes.trusted import WARNING, TrustedRuntime

RUNTIMES: dict[str, Callable[[Any, Path], Runtime]] = {
    "sandbox": SandboxRuntime,
    "container": ContainerRuntime,
    "trusted": TrustedRuntime,
}


def open_runtime(config: RuntimeConfig, folder: Path) -> Runtime:
    """A runtime over `folder`, not started; what a former one left there is its workspace.

    Raises:
        MissingPart: a program that it needs is not installed.
        ProjectError: the configuration opens more than it may.
    """
    return RUNTIMES[config.kind](config, folder)


def warning_of(config: RuntimeConfig) -> str | None:
    """What a person should know before code runs there; None = nothing."""
    return WARNING if config.kind == "trusted" else None
