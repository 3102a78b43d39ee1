"""`flywheel ingest`: what waits in the inbox becomes rows of the store."""

import click

from app.cli import echo, echo_json
from app.start import start


@click.command("ingest")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(as_json: bool) -> None:
    """Commit what waits in the inbox and in the gateway's journal."""
    settings = start(progress=True)
    from flows.server import start_prefect

    start_prefect(settings.at())
    from flows.ingest import ingest

    found = ingest()
    if as_json:
        echo_json(found)
    else:
        echo(", ".join(f"{name} {count}" for name, count in found.items()))
