"""`flywheel train`: the open turn up to a candidate."""

from pathlib import Path

import click

from app.cli import echo, echo_json
from app.start import start, turnable


@click.command("train")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, as_json: bool) -> None:
    """Train the open turn's candidate on its dataset."""
    folder = turnable(project, start(progress=True))
    from flows.train import train

    found = train(folder)
    if as_json:
        echo_json(found)
    else:
        echo(f"checkpoint {found['checkpoint_id']} after {found['steps']} steps")
