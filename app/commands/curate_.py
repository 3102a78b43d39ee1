"""`flywheel curate`: the open turn up to its dataset."""

from pathlib import Path

import click

from app.cli import echo, echo_json
from app.start import start, turnable


@click.command("curate")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, as_json: bool) -> None:
    """Sample, grade and select: the open turn's dataset."""
    folder = turnable(project, start(progress=True))
    from flows.curate import curate

    found = curate(folder)
    if as_json:
        echo_json(found)
    else:
        echo(f"dataset {found['dataset']}: {found['rows']} rows")
