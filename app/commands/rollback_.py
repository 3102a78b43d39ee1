"""`flywheel rollback`: the previous deployment answers again."""

import contextlib
import getpass
from pathlib import Path

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from flywheel.errors import Busy


@click.command("rollback")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--reason", default="asked for by a person", show_default=True)
@click.option("--by", default=getpass.getuser, show_default="you", help="Who asks.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, reason: str, by: str, as_json: bool) -> None:
    """Put PROJECT's previous deployment back, at once."""
    settings = start(progress=True)
    from flywheel.project import load_project
    from serving.engines.client import EngineClient
    from serving.promotion import rollback
    from serving.registry import Registry
    from serving.registry_pages import write_pages
    from serving.server import running
    from storage.committer import commit

    home = settings.at()
    server, registry = running(home), Registry(home)
    serving = rollback(
        home,
        load_project(project).name,
        engine=EngineClient(server.engine_url, access=server.access) if server else None,
        registry=registry,
        by=by,
        reason=reason,
    )
    with contextlib.suppress(Busy):  # it waits in the inbox then
        commit(home)
        write_pages(home, registry, serving.project)
    if as_json:
        echo_json(msgspec.to_builtins(serving))
    else:
        echo(f"serving {serving.name}" + ("" if server else " (from the next start on)"))
