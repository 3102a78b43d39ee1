"""`flywheel preset`: what vLLM is started with on GPUs, by the name of a set of arguments."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start

if TYPE_CHECKING:
    from serving.engines.preset_check import Command
    from serving.engines.presets import Preset


@click.command("preset")
@click.argument("name", required=False)
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--check", is_flag=True, help="Ask vLLM's own argument parser: 10 seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(name: str | None, project: Path, check: bool, as_json: bool) -> None:
    """The sets of vLLM arguments for GPUs, or the command and environment of preset NAME for
    PROJECT. `[serving] preset = "NAME"` starts an engine with it.

    Exit code 1: vLLM's argument parser does not take it.
    """
    settings = start(progress=True)
    from flywheel.project import load_project
    from serving.engines.preset_check import commands_of, complaints
    from serving.engines.presets import names, read_preset
    from serving.server import base_model_of

    home = settings.at()
    if name is None:
        presets = [read_preset(home, one) for one in names(home)]
        _list(presets, as_json)
        return
    preset = read_preset(home, name)
    found = load_project(project)
    commands = commands_of(home, preset, base_model_of(found, settings), found.serving)
    nothing: list[str | None] = [None] * len(commands)
    said = complaints(settings.vllm, commands) if check else nothing
    if as_json:
        echo_json(_told(preset, commands, said if check else None))
    else:
        _show(preset, commands, said, check)
    if any(said):
        raise SystemExit(1)


def _list(presets: "list[Preset]", as_json: bool) -> None:
    if as_json:
        echo_json({"presets": [msgspec.to_builtins(one) for one in presets]})
        return
    for one in presets:
        gpus = f"{one.gpus} GPU" + ("s" if one.gpus > 1 else "")
        echo(f"{one.name:<26} {gpus:<7} {one.about}")


def _told(
    preset: "Preset", commands: "tuple[Command, ...]", said: list[str | None] | None
) -> dict[str, Any]:
    from serving.engines.preset_check import MODULE

    return {
        "preset": preset.name,
        "about": preset.about,
        "gpus": preset.gpus,
        "needs": preset.needs,
        "commands": [
            {
                "role": one.role,
                "command": ["python", "-m", MODULE, *one.arguments],
                "environment": one.environment,
            }
            for one in commands
        ],
        "refused": said,
    }


def _show(
    preset: "Preset", commands: "tuple[Command, ...]", said: list[str | None], check: bool
) -> None:
    from serving.engines.preset_check import MODULE

    echo(f"# {preset.name}: {preset.about}")
    if preset.needs is not None:
        echo(f"# needs {preset.needs}")
    for one, why in zip(commands, said, strict=True):
        echo(f"\n# {one.role}")
        for name, value in one.environment.items():
            text = f'"{value}"' if value.startswith("$") else shlex.quote(value)
            echo(f"export {name}={text}")
        echo(shlex.join(["python", "-m", MODULE, *one.arguments]))
        if check:
            echo(f"# vLLM refuses it: {why}" if why else "# vLLM takes it")
