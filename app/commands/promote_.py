"""`flywheel promote`: the open turn's end, a version by its number, or what MLflow asks for."""

import getpass
import sys
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable


@click.command("promote")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--version", help="Of the registered model; without it, the open turn's candidate.")
@click.option("--asked", is_flag=True, help="Answer what people asked for in MLflow.")
@click.option("--by", default=getpass.getuser, show_default="you", help="Who asks.")
@click.option("--reason", default="", help="Why; it stands in the ledger.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    project: Path, version: str | None, asked: bool, by: str, reason: str, as_json: bool
) -> None:
    """Promote a candidate of PROJECT, if the gates let it.

    A version is compared with the champion on the held-out problems, unless a turn has done so and
    nothing changed. Exit code 3: a gate refused.
    """
    if asked and version:
        raise click.UsageError("--asked answers MLflow, --version is asked for here: take one")
    folder = turnable(project, start(progress=True))
    if asked:
        _answer(folder, as_json)
        return
    if version:
        from flows.trial import trial
        from flywheel.ids import new_ulid

        found: Any = trial(folder, version, True, by, reason, new_ulid())
    else:
        from flows.promote import promote

        found = promote(folder, by, reason)
    if as_json:
        echo_json(found)
    else:
        echo(f"{found['decision']}: {found['reason']}; serving {found['deployment']}")
    sys.exit(0 if found["decision"] == "promoted" else 3)


def _answer(folder: str, as_json: bool) -> None:
    from flows.registry import registry

    found: Any = registry(folder)
    if as_json:
        echo_json(found)
        return
    for one in found["answered"]:
        echo(f"version {one['version']}: {one['decision']}: {one['reason']}")
    for line in found.get("in_line", ()):
        echo(line)
    if found["waiting"]:
        echo(f"{found['waiting']} wait: {found['why']}")
    elif not found["answered"]:
        echo("nothing was asked for")
