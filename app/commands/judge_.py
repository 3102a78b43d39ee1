"""`flywheel judge`: what a model that judges costs, says, and has in common with people."""

import sys
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start

_project = click.argument("project", type=click.Path(path_type=Path), default=".")
_json = click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")


@click.group("judge")
def command() -> None:
    """A project's judge ([judge] in its flywheel.toml)."""


@command.command("show")
@_project
@_json
def show(project: Path, as_json: bool) -> None:
    """What PROJECT's judge is, spent today, and may do."""
    settings = start()
    from flywheel.project import load_project
    from tasks.judge_report import lines_of, shown

    found = shown(load_project(project), settings.at())
    _tell(found, as_json, lines_of)


@command.command("calibrate")
@_project
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Reviewed answers, and compared pairs, judged at most.")  # fmt: skip
@_json
def calibrate(project: Path, limit: int, as_json: bool) -> None:
    """Compare PROJECT's judge with people's reviews. Exit code 3: it may not gate."""
    settings = start(progress=True)
    from flywheel.project import load_project
    from tasks.calibrate import calibrate as measure
    from tasks.judge_report import described, judge_section, lines_of_calibration

    loaded = load_project(project)
    section = judge_section(loaded)
    made = measure(loaded, settings.at(), limit=limit)
    found: dict[str, Any] = {"calibrations": [described(one, section) for one in made]}
    _tell(
        found,
        as_json,
        lambda all: (line for one in all["calibrations"] for line in lines_of_calibration(one)),
    )
    if not all(one["gates"] for one in found["calibrations"]):
        sys.exit(3)


@command.command("try")
@click.argument("trace")
@_project
@_json
def try_(trace: str, project: Path, as_json: bool) -> None:
    """Ask PROJECT's judge about one TRACE; nothing is stored in the store. Exit code 1: it could
    not be asked."""
    settings = start(progress=True)
    from flywheel.project import load_project
    from tasks.judge_report import lines_of_verdicts, tried, withheld

    found = tried(load_project(project), settings.at(), trace)
    _tell(found, as_json, lines_of_verdicts)
    if withheld(found):
        sys.exit(1)


def _tell(found: dict[str, Any], as_json: bool, lines: Any) -> None:
    if as_json:
        echo_json(found)
        return
    for line in lines(found):
        echo(line)
