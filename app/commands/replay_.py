"""`flywheel replay`: recorded traces under another version of a reward."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start
from flywheel.plain import many


@click.command("replay")
@click.argument("trace", required=False)
@click.option(
    "--env",
    "environment",
    metavar="ENV",
    default="",
    help="Grade with this environment; by default the project's as it is now.",
)
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Of the environment's configuration.",
)
@click.option("--all", "whole", is_flag=True, help="All recorded traces instead of one.")
@click.option("--since", help="With --all: since 2026-11-03, or 12h, 7d, 4w.")
@click.option("--until", help="With --all: before then.")
@click.option("--project", type=click.Path(path_type=Path), help="Folder with a flywheel.toml.")
@click.option("--save", is_flag=True, help="Keep the new grades, beside the old.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    trace: str | None, environment: str, pairs: Sequence[str], whole: bool, since: str | None,
    until: str | None, project: Path | None, save: bool, as_json: bool,
) -> None:  # fmt: skip
    """Grade TRACE anew and show what changed. Nothing is stored without --save."""
    if (trace is None) != whole:
        raise click.UsageError("name a trace, or --all")
    home = start(progress=True).at()
    from app.regrading import grader_of, one_trace, span_of_time
    from tasks.replay import replay

    grader = grader_of(home, environment, project, pairs, trace)
    which = one_trace(trace) if trace else span_of_time(grader.project, since, until)
    found = replay(home, grader.environment, which, grader.judging, save=save)
    echo_json(found) if as_json else _tell(found)


def _tell(found: Mapping[str, Any]) -> None:
    echo(f"{found['environment']}, grader {found['grader'][:12]}: {many(found['traces'], 'trace')}")
    for name, one in found["rewards"].items():
        echo(
            f"  {name:<24}{one['same']:>7} same {one['up']:>6} up {one['down']:>6} down "
            f"{one['became_known']:>6} now known {one['became_null']:>6} now null   mean "
            f"{_number(one['mean_before'])} -> {_number(one['mean_after'])}"
        )
    if found["changes"]:
        echo(f"\n{'trace':<14}{'reward':<24}{'old':>9}{'new':>9}  reason")
    for one in found["changes"]:
        where = f" @{one.span}" if one.span else ""
        reason = (one.reason_after or "").strip().split("\n")[-1][:90]
        echo(f"{one.trace[:12]:<14}{(one.reward + where)[:23]:<24}{_number(one.before):>9}"
                   f"{_number(one.after):>9}  {reason}")  # fmt: skip
    saved = found["saved"]
    echo("nothing was stored (--save keeps it)" if saved is None else f"{saved} stored")


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:.3f}"
