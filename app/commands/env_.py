"""`flywheel env`: environments written, checked, built, listed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from flywheel.errors import Refused

_json = click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
_SIGNS = {True: "yes", False: "NO", None: "-"}


@click.group("env")
def command() -> None:
    """Environments: a new one, whether one says what it means, one to share, all there are."""


@command.command("new")
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
@_json
def new(folder: Path, as_json: bool) -> None:
    """Write a working environment into the folder NAME, with its test."""
    from app.environment_new import write_environment

    files = write_environment(folder)
    if as_json:
        echo_json({"folder": str(folder), "files": files})
        return
    echo(f"wrote {', '.join(files)} into {folder}: flywheel env check {folder}")


@command.command("check")
@click.argument("name", metavar="NAME|PATH")
@click.option("--config", "pairs", multiple=True, metavar="KEY=VALUE", help="Of its configuration.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Problems whose answers are graded, spread over all slices.",
)
@click.option("--all", "whole", is_flag=True, help="All problems.")
@_json
def check(
    name: str, pairs: Sequence[str], limit: int, whole: bool, as_json: bool
) -> None:  # fmt: skip
    """Grade NAME's gold and wrong answers twice: an installed name, package.module:Class,
    file.py:Class, or a package's folder."""
    from app.start import start
    from tasks.env_build import place_of
    from tasks.env_check import check as checked
    from tasks.eval_plan import configuration

    start(progress=True)
    place = place_of(name)
    found = checked(place.path, place.base, configuration(pairs), limit=None if whole else limit)
    if as_json:
        echo_json({"environment": found.name, "passed": found.passed,
                   "findings": found.findings})  # fmt: skip
    else:
        for one in found.findings:
            echo(f"  {_SIGNS[one.ok]:<4}{one.check:<22}{one.found}")
    if not found.passed:
        failed = ", ".join(one.check for one in found.findings if one.ok is False)
        raise Refused(f"environment {found.name} does not hold: {failed}")


@command.command("build")
@click.argument("folder", metavar="PATH", type=click.Path(path_type=Path, exists=True))
@_json
def build(folder: Path, as_json: bool) -> None:
    """Make a wheel and a source archive of the package at PATH, in its dist/."""
    from tasks.env_build import build as built

    made = built(folder)
    if as_json:
        echo_json({"wheel": str(made.wheel), "archive": str(made.archive), "names": made.names})
        return
    echo(f"{made.wheel}\n{made.archive}\npip install {made.wheel} brings {made.names[0]}")


@command.command("list")
@click.option("--problems", "count", is_flag=True, help="Count their problems too.")
@_json
def list_(count: bool, as_json: bool) -> None:
    """Environments that are installed: shipped ones, and those of other packages."""
    from tasks.env_list import listed

    found = listed(count=count)
    if as_json:
        echo_json({"environments": found})
        return
    for one in found:
        echo(f"{one['name']:<14}{_of(one):<26}{one['reason'] or one['about']}")
        if one["lacks"]:
            echo(f"{'':<40}{one['lacks']}")


def _of(one: dict[str, Any]) -> str:
    if one["problems"] is None:
        return str(one["package"] or "package unknown")
    sides = one["problems"]
    return f"{sides['train']} train, {sides['heldout']} held out"
