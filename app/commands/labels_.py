"""`flywheel labels`: what people's verdicts come to, whom to trust, what to label next."""

import getpass
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from flywheel.plain import many

if TYPE_CHECKING:
    from flywheel.home import Home
    from storage.labels import Report

_json = click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
_project = click.argument("project", type=click.Path(path_type=Path), default=".")


@click.group("labels")
def command() -> None:
    """People's verdicts on answers: how far they agree, and what to judge next."""


@command.command("report")
@_project
@_json
def report(project: Path, as_json: bool) -> None:
    """Labels by state, Krippendorff's alpha, and a line a reviewer."""
    home = start(progress=True).at()
    from flywheel.project import load_project
    from storage.labels import report

    section = load_project(project)
    found = report(home, section.name, section.labels)
    if as_json:
        echo_json({"project": section.name, **msgspec.to_builtins(found)})
    else:
        _show(section.name, found, section.labels.agreement)


@command.command("queue")
@_project
@click.option("--by", default=getpass.getuser, show_default="you", help="Who looks.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@_json
def queue(project: Path, by: str, limit: int, as_json: bool) -> None:
    """What a verdict is worth most on: disagreement x traffic x effect on training."""
    home = start().at()
    from flywheel.project import load_project
    from storage.review_queue import ranked

    section = load_project(project)
    found = ranked(home, section.name, me=by, limit=limit, section=section.labels)
    if as_json:
        echo_json({"project": section.name, "queue": msgspec.to_builtins(found)})
        return
    for one in found:
        echo(f"{one.trace_id}  {one.value:.3f} = {one.disagreement:.2f} disagreement x "
             f"{one.traffic:.2f} traffic x {one.effect:.1f} effect")  # fmt: skip
    if not found:
        echo(f"nothing of {section.name} waits for {by}")


@command.command("gold")
@click.argument("trace")
@click.argument("verdict", type=click.Choice(["accepted", "rejected", "no"]))
@click.option("--by", default=getpass.getuser, show_default="you", help="Who knows it.")
@_json
def gold(trace: str, verdict: str, by: str, as_json: bool) -> None:
    """Say what is known of TRACE's answer: reviewers meet it unmarked and are measured by it ("no"
    takes it back)."""
    home = start().at()
    said = _gold(home, trace, verdict, by)
    if as_json:
        echo_json(said)
    else:
        known = "is no gold item any more" if verdict == "no" else f"is gold: {verdict}"
        echo(f"trace {trace} of {said['project']} {known}")


def _gold(home: "Home", trace: str, verdict: str, by: str) -> dict[str, Any]:
    """
    Raises:
        UsageError: there is no such trace.
    """
    from flywheel.errors import UsageError
    from flywheel.ids import new_ulid
    from flywheel.records import Feedback
    from flywheel.reviews import GOLD
    from storage.browse import project_of
    from storage.committer import commit
    from storage.inbox import Inbox

    commit(home)
    project = project_of(home, trace)
    if project is None:
        raise UsageError(f"no trace {trace}: `flywheel labels queue` names some")
    no = verdict == "no"
    value = "withdrawn" if no else verdict == "accepted"
    said = Feedback(
        project=project, target=trace, name=GOLD, value=value, kind="category" if no else "boolean",
        by=by, at=time.time_ns(), attributes={"review": new_ulid()},
    )  # fmt: skip
    Inbox(home).append([said])
    commit(home)
    return {"project": project, "trace": trace, "gold": None if no else verdict}


def _show(project: str, found: "Report", wanted: float) -> None:
    states = ", ".join(f"{count} {state}" for state, count in found.answers.items() if count)
    people, gold = many(found.wanted, "reviewer"), many(found.gold, "gold item")
    echo(f"{project}: {states or 'nothing reviewed yet'}; {people} an answer, {gold}")
    alpha = found.alpha
    if alpha.alpha is None:
        echo(f"Krippendorff's alpha: unknown, {alpha.reason}")
    else:
        ends = "" if alpha.low is None else f" ({alpha.low:+.2f} to {alpha.high:+.2f})"
        under = "" if found.trusted else f", under the {wanted:g} that [labels] agreement wants"
        over = f" over {many(alpha.units, 'answer')}"
        echo(f"Krippendorff's alpha: {alpha.alpha:+.2f}{ends}{over}{under}")
    for one in found.reviewers:
        gold = "no gold seen"
        if one.accuracy is not None:
            gold = (f"gold {one.gold_right}/{one.gold_seen}, {one.accuracy:.0%} "
                    f"({one.low:.0%} to {one.high:.0%})")  # fmt: skip
        others = "" if one.agrees is None else f", with others {one.agrees:.0%} of {one.common}"
        echo(f"  {one.name}: {one.reviewed} reviewed, {gold}{others}")
