"""`flywheel turn`: one whole turn of a project."""

import sys
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable


@click.command("turn")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, as_json: bool) -> None:
    """One whole turn of PROJECT: ingest to promotion or refusal.

    A turn that was stopped goes on where it was. Exit code 3: a gate refused.
    """
    folder = turnable(project, start(progress=True))
    from flows.turn import turn

    report: Any = turn(folder)
    if as_json:
        echo_json(report)
    else:
        by = f" by the {report['gate']} gate" if report["decision"] == "refused" else ""
        if report["repeated"]:
            echo("nothing has come or changed since the last turn; its verdict stands:")
        decision = "waiting" if report["waiting"] else report["decision"] + by
        decision = "in its canary" if report["canary"] else decision
        echo(f"{report['project']}: {decision}: {report['reason']}")
        echo(f"serving: {report['deployment']}; the whole turn: {report['page']}")
    sys.exit(0 if report["decision"] == "promoted" or report["canary"] else 3)
