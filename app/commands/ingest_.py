"""`flywheel ingest`: what waits in the inbox becomes rows of the store."""

from pathlib import Path

import click

from app.cli import echo, echo_json
from app.start import start


@click.command("ingest")
@click.argument("project", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path | None, as_json: bool) -> None:
    """Commit what waits in the inbox and in the gateway's journal.

    They hold what came for all projects of the home, so that PROJECT may be named and changes
    nothing.
    """
    settings = start(progress=True)
    if project is not None:
        from flywheel.known import remember
        from flywheel.project import load_project

        remember(settings.at(), load_project(project))
    from flows.server import start_prefect

    start_prefect(settings.at())
    from flows.ingest import ingest

    found = ingest()
    if as_json:
        echo_json(found)
    else:
        echo(", ".join(f"{name} {count}" for name, count in found.items()))
