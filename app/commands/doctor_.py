"""`flywheel doctor`: checks every part and says how to mend what is wrong; changes nothing."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli import echo_json

if TYPE_CHECKING:
    from app.doctor.examine import Told

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}


@click.command("doctor")
@click.argument("projects", metavar="[PROJECT]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
@click.option("--deep", is_flag=True, help="Load weights, read every waiting segment: minutes.")
def command(projects: tuple[Path, ...], as_json: bool, deep: bool) -> None:
    """Check every part, of each PROJECT too, and say how to mend what is wrong. Changes nothing.

    Exit code 0: all is well, warnings aside. 1: something is wrong.
    """
    from app.doctor.examine import Told, as_lines, examine, worst
    from app.doctor.finding import Case, wrong
    from app.doctor.table import CHECKS
    from app.doctor.unfit import load_sound
    from flywheel.known import known
    from flywheel.settings import quiet_dependencies

    begun = time.monotonic()
    settings, unfit = load_sound()
    home = settings.at()
    quiet_dependencies(home)
    named = (one.parent if one.is_file() else one for one in projects)
    folders = dict.fromkeys([*(one.resolve() for one in named), *known(home).values()])
    told = examine(Case(home, settings, tuple(folders), deep), CHECKS)
    said = [wrong(words, "unset it, or give it a value that fits") for words in unfit]
    told[:0] = [Told("settings", said)] if said else []
    if as_json:
        echo_json(
            {
                "home": str(home.root),
                "worst": worst(told),
                "findings": as_lines(told),
                "seconds": round(time.monotonic() - begun, 2),
            }
        )
    else:
        show(told)
    sys.stdout.flush()
    sys.exit(1 if worst(told) == "wrong" else 0)


def show(told: "list[Told]") -> None:
    from app.doctor.finding import many

    for one in told:
        for finding in one.findings:
            level = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
            click.echo(f"{level} {one.name:<13} {_plain(finding.says)}")
            if finding.remedy:
                click.echo(f"{'':<8} {'':<13} -> {_plain(finding.remedy)}")
    counts = [finding.level for one in told for finding in one.findings]
    click.echo(
        f"\n{counts.count('ok')} ok, {many(counts.count('warning'), 'warning')}, "
        f"{counts.count('wrong')} wrong"
    )


def _plain(text: str) -> str:
    """On one line, without what a terminal would act on."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())
