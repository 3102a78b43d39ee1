"""`flywheel grade`: recorded traces, graded."""

from pathlib import Path

import click

from app.cli import echo_json
from app.start import start, turnable


@click.command("grade")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, as_json: bool) -> None:
    """Ingest, then grade PROJECT's recorded traces."""
    folder = turnable(project, start(progress=True))
    from flows.grade import grade

    found = grade(folder)
    if as_json:
        echo_json(found)
    else:
        click.echo(f"graded {found['graded']}, not gradable {found['not_gradable']}")
