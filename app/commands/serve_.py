"""`flywheel serve`: gateway and engine, until stopped."""

from pathlib import Path
from typing import Literal

import click

from app.cli import echo, echo_json
from app.start import start

Engine = Literal["embedded", "vllm"]


@click.command("serve")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--port", type=int, help="Of the gateway; 0: a free one.")
@click.option("--host", help="To listen on; wider than this machine needs keys.")
@click.option(
    "--engine",
    type=click.Choice(["embedded", "vllm"]),
    help="Goes before the project's; on a GPU, [serving] device says so.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object once it answers.")
def command(
    project: Path, port: int | None, host: str | None, engine: Engine | None, as_json: bool
) -> None:
    """Serve PROJECT: OpenAI-compatible, every request captured, until Ctrl-C."""
    settings = start(progress=True)
    from flywheel.known import remember
    from flywheel.project import load_project
    from serving.presence import ServerRecord
    from serving.server import serve

    def ready(at: ServerRecord) -> None:
        if as_json:
            echo_json({"url": at.url, "engine_url": at.engine_url, "pid": at.pid})
        else:
            echo(f"{' '.join(at.projects)} answers at {at.url}/v1; Ctrl-C stops it")

    if engine is not None:
        settings = settings.model_copy(update={"engine": engine})
    served = load_project(project)
    remember(settings.at(), served)
    serve(settings.at(), served, settings, port=port, host=host, ready=ready)
