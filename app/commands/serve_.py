"""`flywheel serve`: gateway and engine, until stopped."""

from pathlib import Path

import click

from app.start import start


@click.command("serve")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--port", type=int, help="Of the gateway; 0: a free one.")
@click.option("--host", help="To listen on; wider than this machine needs keys.")
def command(project: Path, port: int | None, host: str | None) -> None:
    """Serve PROJECT: OpenAI-compatible, every request captured, until Ctrl-C."""
    settings = start(progress=True)
    from flywheel.project import load_project
    from serving.server import serve

    serve(settings.at(), load_project(project), settings, port=port, host=host)
