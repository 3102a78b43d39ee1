"""`flywheel estimate`: what a version would have earned on recent production traffic."""

import getpass
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable


@click.command("estimate")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--version", required=True, help="Of the registered model.")
@click.option(
    "--sample",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Recent conversations that it is asked again, at most.",
)
@click.option("--since", help="Only traffic since 2026-11-03, or 12h, 7d, 4w.")
@click.option("--by", default=getpass.getuser, show_default="you", help="Who asks.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    project: Path, version: str, sample: int, since: str | None, by: str, as_json: bool
) -> None:
    """Ask a version of PROJECT recent production prompts again, beside what was served.

    Tools are answered from the record. Where routing drew between it and the champion, the logged
    probabilities give a second estimate. Nothing that serves changes.
    """
    settings = start(progress=True)
    folder = turnable(project, settings)
    from flows.estimate import estimate
    from tasks.problems import moment_of

    found: Any = estimate(folder, version, sample, by, moment_of(since) if since else None)
    found = {**found, "plot": str(settings.at().path(found["plot"]).resolve())}
    echo_json(found) if as_json else _tell(found)


def _tell(found: Mapping[str, Any]) -> None:
    replay, logged = found["replay"], found["logged"]
    echo(f"{found['candidate']} beside {found['champion']}: {found['verdict']}")
    echo(
        f"  replay          {replay['said']}\n"
        f"                  {replay['compared']} of {replay['asked']} conversations compared, "
        f"{replay['diverged']} diverged, {replay['failed']} failed, "
        f"{replay['looked_at'].get('trained_on', 0)} left out as it was trained on them"
    )
    for one in replay["slices"] if len(replay["slices"]) > 1 else ():
        low, high = _number(one["low"]), _number(one["high"])
        echo(f"    {one['name'][:28]:<30}{one['problems']:>5}  {_number(one['difference'])} "
             f"({low} to {high})")  # fmt: skip
    echo(f"  logged choices  {logged['said']}")
    for arm in (logged["candidate"], logged["champion"]):
        if arm["answers"]:
            echo(
                f"    {arm['name']:<22}{arm['answers']:>6} answers, worth {arm['effective']:.0f}: "
                f"doubly robust {arm['dr']:.3f}, self-normalised {arm['snips']:.3f}, plain "
                f"{arm['ips']:.3f}"
            )
    echo(f"  plot            {found['plot']}")


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:+.3f}"
