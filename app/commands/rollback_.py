"""`flywheel rollback`: the previous deployment answers again.

Who answers changes first, and stands in the ledger before the command says so. MLflow, which takes
seconds to open, is told by the running server, or without one by this command afterwards.
"""

import contextlib
import getpass
from pathlib import Path

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from flywheel.errors import Busy
from flywheel.home import Home


@click.command("rollback")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--reason", default="asked for by a person", show_default=True)
@click.option("--by", default=getpass.getuser, show_default="you", help="Who asks.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, reason: str, by: str, as_json: bool) -> None:
    """Put PROJECT's previous deployment back, at once."""
    settings = start(progress=True)
    from flywheel.project import load_project
    from serving.engines.loading import checked_host
    from serving.presence import running
    from serving.promotion import rollback
    from storage.committer import commit

    home, found = settings.at(), load_project(project)
    name, server = found.name, running(home)
    serving = rollback(
        home,
        name,
        engine=checked_host(server.engine_url, server.access, found.serving) if server else None,
        registry=None,
        by=by,
        reason=reason,
    )
    if as_json:
        echo_json(msgspec.to_builtins(serving))
    else:
        echo(f"serving {serving.name}" + ("" if server else " (from the next start on)"))
    with contextlib.suppress(Busy):  # it waits in the inbox then
        commit(home, wait_s=2)
    if server is None:
        _tell(home, name)


def _tell(home: Home, project: str) -> None:
    """Raises FlywheelError: MLflow cannot be written; what serves is as it was said."""
    from serving.reconcile import alone, settle
    from serving.registry import Registry
    from serving.registry_pages import write_pages

    with alone(home, project):
        settle(home, project, Registry(home), None)
    write_pages(home, Registry(home), project)
