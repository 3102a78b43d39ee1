"""`flywheel erase`: all that is somebody's goes, and a search shows that nothing is left."""

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli import echo, echo_json
from app.start import start

if TYPE_CHECKING:
    from storage.erasure_plan import Plan

KINDS = ("user", "tenant", "conversation", "trace")


@click.command("erase")
@click.option("--user", help="Whose traces go.")
@click.option("--tenant", help="Whose traces go: of a customer, an organisation.")
@click.option("--conversation", help="Its id.")
@click.option("--trace", help="Its id, the sender's, or that of one of its responses.")
@click.option("--project", help="Only in this one, by name or folder. [default: all of the home]")
@click.option("--reason", default="", help="Why; it stands in the receipt.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: str | None, reason: str, dry_run: bool, as_json: bool, **asked: str) -> None:
    """Erase everything of a user, tenant, conversation or trace: traces and their copies, raw
    bytes, grades, feedback, problems, dataset rows, files of runs, caches.

    Datasets get successors without it, what was trained on it is marked, and the whole home is
    searched until nothing is found. Exit code 1 if something could not be removed; the receipt says
    what. Without a name it goes on with an erasure that was stopped.
    """
    home = start(progress=True).at()
    from storage.erasure import erase, resume
    from storage.erasure_plan import counts_of, plan_of
    from storage.reach import Asked

    given = {kind: value for kind, value in asked.items() if value}
    if len(given) > 1 or (dry_run and not given):
        raise click.UsageError("name one: --user, --tenant, --conversation or --trace")
    if not given:
        receipts = resume(home)
        if not receipts:
            raise click.UsageError("name whom to erase: --user, --tenant, --conversation, --trace")
    else:
        ((kind, value),) = given.items()
        wanted = Asked(kind=kind, value=value, project=_name(project))  # type: ignore[arg-type]
        if dry_run:
            plan = plan_of(home, wanted)
            _show(as_json, {"would_remove": counts_of(plan), **_made(plan)})
            return
        receipts = [erase(home, wanted, by=getpass.getuser(), reason=reason)]
    for receipt in receipts:
        _show(as_json, {name: getattr(receipt, name) for name in receipt.__struct_fields__})
    sys.exit(1 if any(one.left for one in receipts) else 0)


def _name(project: str | None) -> str | None:
    if project is None or not (Path(project) / "flywheel.toml").is_file():
        return project
    from flywheel.project import load_project

    return load_project(Path(project)).name


def _made(plan: "Plan") -> dict[str, Any]:
    return {
        "datasets": {one.id: f"{one.rows} of {one.of} rows" for one in plan.datasets},
        "flagged": [one.target for one in plan.marks if one.target_kind != "dataset"],
    }


def _show(as_json: bool, found: dict[str, Any]) -> None:
    if as_json:
        echo_json(found)
        return
    for name, value in found.items():
        if isinstance(value, dict):
            for key, one in value.items():
                echo(f"{name:<12} {key}: {'retired, no row is left' if one is None else one}")
        elif isinstance(value, list | tuple):
            for one in value:
                echo(f"{name:<12} {one}")
        else:
            echo(f"{name:<12} {value}")
    if not found.get("left", True):
        echo("nothing is left: every file of the home was searched")
