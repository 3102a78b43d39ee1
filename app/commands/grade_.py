"""`flywheel grade`: recorded traces, graded."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable
from flywheel.plain import many


@click.command("grade")
@click.argument("project", type=click.Path(path_type=Path), required=False)
@click.option(
    "--env",
    "environment",
    metavar="ENV",
    help="Grade with this environment, as `flywheel eval` names them.",
)
@click.option("--since", help="With --env: traces since 2026-11-03, or 12h, 7d, 4w.")
@click.option("--until", help="With --env: traces before then.")
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --env: of its configuration.",
)
@click.option(
    "--project",
    "of",
    type=click.Path(path_type=Path),
    help="With --env: only this project's traces, with its judge.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    project: Path | None, environment: str | None, since: str | None, until: str | None,
    pairs: Sequence[str], of: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Ingest, then grade PROJECT's recorded traces (or, with --env, any, by any environment)."""
    if environment is not None:
        found = _with_environment(environment, project or of, since, until, pairs)
    elif since or until or pairs:
        raise click.UsageError("--since, --until and --config go with --env")
    else:
        folder = turnable(project or of or Path(), start(progress=True))
        from flows.grade import grade

        found = grade(folder)
    if as_json:
        echo_json(found)
        return
    for line in _lines(found, since, until):
        echo(line)
    if release := found.get("release"):
        echo(
            f"{release['challenger']}: {release['decided'] or release['says']}: {release['reason']}"
        )


def _lines(found: dict[str, Any], since: str | None, until: str | None) -> Iterator[str]:
    judged = found["judge"]
    if found.get("traces") == 0:
        when = f" since {since}" * bool(since) + f" until {until}" * bool(until)
        newest = found["newest"] and datetime.fromtimestamp(found["newest"] / 1e9, UTC)
        told = f"; the newest is of {newest:%Y-%m-%d %H:%M} UTC" if newest else ""
        yield f"0 of {found['recorded']} recorded traces{when}: nothing was graded{told}"
        return
    if found["graded"] or found["not_gradable"] or not judged:
        yield f"graded {found['graded']}, not gradable {found['not_gradable']}"
    for reason, count in found.get("reasons", {}).items():
        yield f"  {count} {reason}"
    if judged:
        yield from _heard(judged)


def _heard(judged: dict[str, Any]) -> Iterator[str]:
    traces, informing, usd = (judged[name] for name in ("traces", "informing", "cost_usd"))
    parts = [f"{many(traces, 'trace')} judged"]
    if informing:
        parts.append("informing only" if informing == traces else f"{informing} informing only")
    parts.append("cost not known" if usd is None else f"${usd:.4f}")
    yield ", ".join(parts)
    for reason, count in judged["no_verdict"].items():
        yield f"  {count} not judged: {reason}"


def _with_environment(
    environment: str, folder: Path | None, since: str | None, until: str | None,
    pairs: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    home = start(progress=True).at()
    from app.regrading import grader_of, span_of_time
    from tasks.grade_env import grade_recorded_with

    grader = grader_of(home, environment, folder, pairs)
    which = span_of_time(grader.project, since, until)
    return grade_recorded_with(home, grader.environment, which, grader.judging, grader.judge)
