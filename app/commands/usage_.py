"""`flywheel usage`: calls, tokens and dollars by project, key, deployment or day."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli import echo, echo_json
from app.durations import MOMENT
from app.start import start
from flywheel.errors import UsageError

if TYPE_CHECKING:
    from storage.usage import Used

_GROUPS = ("project", "key", "deployment", "day")
_HEAD = ("calls", "failed", "tokens in", "cached", "tokens out", "dollars")


@click.command("usage")
@click.option("--project", help="Of one project by its name; without: of all.")
@click.option("--by", type=click.Choice(_GROUPS), multiple=True, default=("project",),
              show_default=True, help="May repeat: a line for each pair.")  # fmt: skip
@click.option("--since", type=MOMENT, help="A day such as 2026-11-01 (UTC), or how long ago: 30d.")
@click.option("--until", type=MOMENT, help="Likewise; not part of it.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    project: str | None, by: Sequence[Any], since: int | None, until: int | None, as_json: bool
) -> None:
    """What passed through the gateway: calls, tokens, and dollars at the project's [prices].

    A sum that some calls are missing from says over how many it is, and why. Prices hold for calls
    recorded afterwards.
    """
    home = start().at()
    from app.named import projects
    from storage.overview import waiting
    from storage.usage import usage

    if project is not None and project not in (known := projects(home)):
        raise UsageError(
            f"no project {project} is known here; there is {', '.join(known) or 'none'}"
        )
    found = usage(home, by, project=project, since=since, until=until)
    waits = waiting(home)
    if as_json:
        echo_json({"by": list(by), "usage": msgspec.to_builtins(found), "waiting": waits})
        return
    if not found:
        echo("no call of the gateway is in the store")
    else:
        for line in lines(list(by), found):
            echo(line)
    if waits["segments"] or waits["journal_bytes"]:
        echo("what came last waits in the journal: flywheel ingest takes it in")


def lines(by: list[str], found: "Sequence[Used]") -> list[str]:
    rows = [[*by, *_HEAD]]
    for one in found:
        rows.append([*(one.group[name] or "-" for name in by), *_figures(one)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    named = len(by)
    table = [
        "  ".join(
            cell.ljust(width) if place < named else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return table + _notes(found)


def _figures(one: "Used") -> list[str]:
    mark = "" if one.counted == one.calls else "*"
    tokens = (one.input_tokens, one.cached_input_tokens, one.output_tokens)
    counts = ["?" if count is None else f"{count:,}{mark}" for count in tokens]
    dollars = "?" if one.cost_usd is None else f"{_dollars(one.cost_usd)}{'+' * one.partial}"
    return [f"{one.calls:,}", f"{one.failed:,}", *counts, dollars]


def _dollars(cost: float) -> str:
    return "<0.0001" if 0 < cost < 0.0001 else f"{cost:,.4f}"


def _notes(found: "Sequence[Used]") -> list[str]:
    notes = []
    calls, counted = sum(one.calls for one in found), sum(one.counted for one in found)
    if counted < calls:
        notes.append(f"*  the tokens of {calls - counted:,} of {calls:,} calls are not known")
    if any(one.partial for one in found):
        reasons = sorted({one.why or "their cost was not recorded" for one in found if one.partial})
        notes.append(f"+  part of the cost is not known: {'; '.join(reasons)}")
    return notes
