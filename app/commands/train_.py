"""`flywheel train`: the open turn up to a candidate; several projects' side by side."""

import sys
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable
from flywheel.settings import prefer


@click.command("train")
@click.argument("projects", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--engine",
    type=click.Choice(["here", "torchrun", "verl", "prime-rl"]),
    help="Where it trains ([train.machine] engine).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(projects: tuple[Path, ...], engine: str | None, as_json: bool) -> None:
    """Train the open turn's candidate of each of PROJECTS.

    Several share one base model and one engine. A run that was stopped goes on where it was. Exit
    code 3: a gate refused.
    """
    prefer("train_engine", engine)
    settings = start(progress=True)
    folders = [turnable(one, settings) for one in dict.fromkeys(projects or (Path(),))]
    from flows.train import train, train_together

    if len(folders) == 1:
        found: Any = train(folders[0])
        if as_json:
            echo_json(found)
        else:
            echo(told(found))
        return
    several = train_together(folders)
    if as_json:
        echo_json({"runs": several})
    for one in () if as_json else several:
        echo(f"{one['project']}: {told(one)}")
    failed = any("failed" in one for one in several)
    sys.exit(1 if failed else 3 if any("refused" in one for one in several) else 0)


def told(found: dict[str, Any]) -> str:
    for kind in ("refused", "failed"):
        if kind in found:
            return f"{kind}: {found[kind]}"
    return f"checkpoint {found['checkpoint_id']} after {found['steps']} steps"
