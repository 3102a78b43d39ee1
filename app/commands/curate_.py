"""`flywheel curate`: the open turn up to its dataset, or a look at what it would hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable
from flywheel.plain import many

WIDTH = 56
"""Characters of a prompt, or an answer, on a line."""


@click.command("curate")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--preview", is_flag=True, help="Only look: what the store has now, rule by rule.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, preview: bool, as_json: bool) -> None:
    """Sample, grade and select: the open turn's dataset.

    With --preview nothing is sampled, no model is loaded and nothing is written: the candidates
    that the store has now go through the rules, with rows in and out of each, examples that went
    and why, and examples that stay.
    """
    if preview:
        _look(project, as_json)
        return
    folder = turnable(project, start(progress=True))
    from flows.curate import curate

    found = curate(folder)
    if as_json:
        echo_json(found)
    else:
        echo(f"dataset {found['dataset']}: {many(found['rows'], 'row')}")


def _look(project: Path, as_json: bool) -> None:
    start(progress=True)
    from tasks.preview import preview

    found = preview(str(project))
    if as_json:
        echo_json(found)
        return
    for line in lines(found):
        echo(line)


def lines(found: dict[str, Any]) -> Iterator[str]:
    origins = ", ".join(f"{count:,} {name}" for name, count in found["candidates"].items())
    when = f"as turn {found['turn'][:12]} sees them" if found["turn"] else "as they are now"
    yield f"candidates {when}: {origins or 'none'}"
    yield f"\n{'rule':<20}{'in':>10}{'out':>10}  with"
    for rule in found["rules"]:
        counted = f"{rule['rule']:<20}{rule['rows_in']:>10,}{rule['rows_out']:>10,}"
        yield f"{counted}  {rule['note']}".rstrip()
        for one in rule["examples"]:
            yield f"  - trace {one['trace_id'][:12]}: {one['reason']}"
            yield f"    {_said(one)}"
    few = "" if found["rows"] >= found["wanted"] else f", at least {found['wanted']} are wanted"
    rows = many(found["rows"], "row")
    yield f"\nthe dataset would have {rows}{few}" + (":" if found["kept"] else "")
    for one in found["kept"]:
        reward = "" if one["reward"] is None else f", reward {one['reward']:g}"
        by = f", confirmed by {one['confirmed_by']}" if one["confirmed_by"] else ""
        yield f"  + trace {one['trace_id'][:12]}{reward}{by}"
        yield f"    {_said(one)}"


def _said(one: dict[str, Any]) -> str:
    answered = f" → {_line(one['answered'])}" if one["answered"] else ""
    return _line(one["asked"]) + answered


def _line(text: str) -> str:
    """One line that a terminal shows as it is, whatever somebody wrote."""
    plain = "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))
    return plain if len(plain) <= WIDTH else plain[: WIDTH - 1] + "…"
