"""`flywheel canary`: a version answers a share of the requests, or no share any more."""

import getpass
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable


@click.command("canary")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--version", help="Of the registered model; to end a canary it may be left out.")
@click.option("--share", type=float, required=True, help="Of the requests, below 1; 0 ends it.")
@click.option("--by", default=getpass.getuser, show_default="you", help="Who asks.")
@click.option("--reason", default="", help="Why; it stands in the ledger.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    project: Path, version: str | None, share: float, by: str, reason: str, as_json: bool
) -> None:
    """Let a version of PROJECT answer a share of the requests, beside the champion.

    It passes the serving gate first. A conversation stays with whom it got. Exit code 3: the gate
    refused.
    """
    from serving.canary import must_be_share

    if version is None and share:
        raise click.UsageError("--version says which one shall answer that share")
    must_be_share(share)
    folder = turnable(project, start(progress=True))
    from flows.canary import canary

    found: Any = canary(folder, version, share, by, reason)
    if as_json:
        echo_json(found)
    elif found["challenger"]:
        echo(f"{found['challenger']} answers {found['share']:.1%}, {found['champion']} the rest")
    else:
        echo(f"{found['champion']} answers all requests")
