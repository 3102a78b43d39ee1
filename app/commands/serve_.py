"""`flywheel serve`: gateway and engine, until stopped."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from app.cli import echo, echo_json
from app.start import start

Engine = Literal["embedded", "vllm"]


@click.command("serve")
@click.argument("projects", type=click.Path(path_type=Path), nargs=-1)
@click.option("--port", type=int, help="Of the gateway; 0: a free one.")
@click.option("--host", help="To listen on; wider than this machine needs keys.")
@click.option(
    "--engine",
    type=click.Choice(["embedded", "vllm"]),
    help="Goes before the project's; on a GPU, [serving] device says so.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object once it answers.")
def command(
    projects: tuple[Path, ...],
    port: int | None,
    host: str | None,
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Serve PROJECTS, every request captured, until Ctrl-C.

    Several share one base model and its engine; the first one's [serving] is the server's. Left
    out: the project in this folder. A change of their files holds at once (SIGHUP: without waiting
    a second), one that is not sound changes nothing.
    """
    settings = start(progress=True)
    from flywheel.known import remember
    from flywheel.project import load_project
    from serving.presence import ServerRecord
    from serving.server import serve

    def ready(at: ServerRecord) -> None:
        if as_json:
            echo_json({"url": at.url, "engine_url": at.engine_url, "pid": at.pid})
        else:
            answer = "answers" if len(at.projects) == 1 else "answer"
            echo(f"{', '.join(at.projects)} {answer} at {at.url}/v1; Ctrl-C stops it")

    if engine is not None:
        settings = replace(settings, engine=engine)
    served = [load_project(folder) for folder in projects or (Path(),)]
    for project in served:
        remember(settings.at(), project)
    serve(settings.at(), served, settings, port=port, host=host, ready=ready)
