"""`flywheel status`: what serves, what runs, what waits."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start
from app.told import RETRAIN
from flywheel.plain import many


@click.command("status")
@click.argument("project", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path | None, as_json: bool) -> None:
    """What serves, what runs, what waits in this home; of PROJECT alone, where it is named."""
    home = start().at()
    from flywheel.project import load_project

    found = status(home, None if project is None else load_project(project).name)
    if as_json:
        echo_json(found)
        return
    server = found["server"]
    echo(f"home      {found['home']}")
    echo(f"server    {server['url'] if server else NO_SERVER[found['starting']]}")
    waits = found["waiting"]
    if waits["segments"] or waits["journal_bytes"]:
        kib = waits["journal_bytes"] / 1024
        echo(
            f"waiting   {many(waits['segments'], 'segment')}, {kib:.1f} KiB of journal: the next "
            "turn takes them in, or flywheel ingest now"
        )
    else:
        echo("waiting   nothing")
    if not found["projects"]:
        echo("projects  none yet: flywheel demo, or flywheel init FOLDER")
    for name, one in found["projects"].items():
        serves = f"{one['champion']} serves, {one['previous'] or 'nothing'} before it"
        if one["challenger"]:
            serves += f"; {one['challenger']} answers {one['share']:.1%} as a canary"
        echo(f"\n{name}: {serves if one['champion'] else 'nothing serves it here'}")
        echo(f"  {'turn under way':<20} {turn_words(one)}")
        for key, count in one["counts"].items():
            echo(f"  {key:<20} {count:<9} {MEANING.get(key, '')}".rstrip())
        if one["last_decision"]:
            said = one["last_decision"]
            words = f"{said['outcome']} by the {said['gate']} gate: {said['reason']}"
            echo(f"  {'last decision':<20} {words}")
        for line in mark_words(one["marks"]):
            echo(f"  {'changed since':<20} {line}")


NO_SERVER = {True: "starting", False: "none runs: flywheel serve PROJECT"}


def turn_words(project: dict[str, Any]) -> str:
    if project["turn"] is None:
        return "none"
    if project["turn_alive"] is not False:
        return str(project["turn"])
    again = f"flywheel turn {shlex.quote(project['turn_folder'])}"
    return f"{project['turn']}: stopped; `{again}` goes on with it"


def mark_words(marks: list[dict[str, Any]]) -> Iterator[str]:
    """One line for all that stands on one change."""
    stand: dict[tuple[str, str, bool | None], list[str]] = {}
    for one in marks:
        about = (one["cause"], one["reason"], one["retrain"])
        stand.setdefault(about, []).append(f"{one['target_kind']} {one['target'][:20]}")
    for (cause, reason, retrain), on in stand.items():
        yield f"{cause}: {reason} ({', '.join(on)}); {RETRAIN[retrain]}"


MEANING = {
    "traces": "recorded conversations, each once",
    "copies": "the same again under another id: kept, not counted",
    "rollouts": "answers sampled by turns",
    "evaluations": "answers to held-out problems",
    "incomplete": "whose parent span has not come yet",
    "trainable": "with the token ids that were sampled",
    "renderable": "with whole messages, without token ids",
    "view_only": "cut or broken: never trained on",
    "spans": "steps of recorded traces",
    "calls": "of them model calls",
    "calls_with_usage": "calls whose token counts are known; the sums are over these",
    "feedback": "what people and systems said, each word of it",
    "grades": "rewards of traces, rollouts and evaluations",
}


def status(home: Any, project: str | None = None) -> dict[str, Any]:
    """The same, as one object.

    Args:
        project: only this one; None = all.
    """
    import msgspec

    from app.views.progress_data import locked
    from serving.routing import read
    from serving.server import running
    from storage.overview import known_projects, waiting
    from storage.queries import counts, records
    from tasks.turns import turn_under_way

    server, routing = running(home), read(home)
    projects: dict[str, Any] = {}
    there = sorted({*routing.projects, *known_projects(home)})
    for name in there if project is None else [project]:
        route = routing.projects.get(name)
        turn = turn_under_way(home, name)
        decisions = sorted(records(home, "decision", project=name), key=lambda one: one.at)
        projects[name] = {
            "champion": route.champion.name if route else None,
            "previous": route.previous.name if route and route.previous else None,
            "challenger": route.challenger.name if route and route.challenger else None,
            "share": route.share if route and route.challenger else 0.0,
            "turn": turn.run_id if turn else None,
            "turn_alive": locked(home.locks / f"turn-{name}.lock") if turn else None,
            "turn_folder": turn.folder if turn else None,
            "counts": counts(home, name),
            "last_decision": msgspec.to_builtins(decisions[-1]) if decisions else None,
            "marks": [
                {"retrain": None, **msgspec.to_builtins(one)}
                for one in records(home, "mark", project=name)
                if not one.settled
            ],
        }
    return {
        "home": str(home.root),
        "server": msgspec.to_builtins(server) if server else None,
        "starting": server is None and bool(locked(home.locks / "server.lock")),
        "waiting": waiting(home),
        "projects": projects,
    }
