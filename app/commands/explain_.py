"""`flywheel explain`: why a trace is, or is not, in a dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from flywheel.consent import day
from flywheel.plain import many

if TYPE_CHECKING:
    from storage.explain import Explained


@click.command("explain")
@click.argument("trace")
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    help="Folder of the project whose rules of now are asked too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(trace: str, project: Path | None, as_json: bool) -> None:
    """Why TRACE (an id of ours, or the sender's) is or is not in its project's datasets: copies,
    fidelity, grades, what the last datasets did with it, and with --project what each rule says of
    it now.
    """
    home = start(progress=True).at()
    from storage.explain import explained

    named, now = None, None
    if project is not None:
        from flywheel.project import load_project

        named = load_project(project).name
    found = explained(home, trace, project=named)
    if project is not None:
        from tasks.preview import verdicts

        now = verdicts(str(project), found)
    if as_json:
        echo_json({**msgspec.to_builtins(found), "now": now})
        return
    for line in lines(found, now):
        echo(line)


def lines(found: "Explained", now: dict[str, Any] | None) -> Iterator[str]:
    yield f"trace {found.trace_id}: {found.origin} of {found.source} in {found.project}"
    if found.asked in found.copies:
        yield f"  {found.asked} is a copy of it: it is counted once, as this one"
    elif found.copies:
        copies = many(len(found.copies), "copy", "copies")
        yield f"  stands for {copies}: {', '.join(found.copies[:3])}"
    if found.consent is not None:
        yield f"  consent {found.consent}"
    if found.expires is not None:
        yield f"  must be gone by {day(found.expires)}"
    why = f": {'; '.join(found.fidelity_reasons)}" if found.fidelity_reasons else ""
    yield f"  fidelity {found.fidelity or 'unknown'}{why}"
    yield f"  reward {'unknown' if found.reward is None else format(found.reward, 'g')}"
    for grade in found.grades:
        value = "none" if grade.value is None else f"{grade.value:g}"
        by = f", confirmed by {grade.confirmed_by}" if grade.confirmed_by else ""
        reason = f": {grade.reason}" if grade.reason else ""
        yield f"    {grade.reward} {value} ({grade.kind}, weight {grade.weight:g}{by}){reason}"
    for fate in found.fates:
        rule = f"left out by {fate.rule}: " if fate.rule else ""
        yield f"dataset {fate.dataset[:12]}  {'in' if fate.inside else 'not in'}: {rule}{fate.why}"
    if not found.fates:
        yield "no dataset of its project yet"
    if now is not None:
        yield from _now(now)


def _now(now: dict[str, Any]) -> Iterator[str]:
    if now["no_candidate"]:
        yield f"now  no candidate: {now['no_candidate']}"
        return
    yield f"now  {'in' if now['inside'] else 'not in'} the dataset that would be made:"
    rows = len({one["row"] for one in now["rules"]})
    seen = -1
    for one in now["rules"]:
        if rows > 1 and one["row"] != seen:
            again = f", rehearsed from {one['rehearsed'][:12]}" if one["rehearsed"] else ""
            yield f"  row {one['row_id'][:12]}{again}"
            seen = one["row"]
        yield f"  {'-' if one['why'] else '+'} {one['rule']:<20} {one['why'] or 'stays'}"
