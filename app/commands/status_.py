"""`flywheel status`: what serves, what runs, what waits."""

from typing import Any

import click

from app.cli import echo_json
from app.start import start


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(as_json: bool) -> None:
    """What serves, what runs, what waits in this home."""
    found = status(start().at())
    if as_json:
        echo_json(found)
        return
    server = found["server"]
    click.echo(f"home      {found['home']}")
    click.echo(f"server    {server['url'] if server else 'none runs: flywheel serve PROJECT'}")
    waits = found["waiting"]
    if waits["segments"] or waits["journal_bytes"]:
        kib = waits["journal_bytes"] / 1024
        click.echo(
            f"waiting   {waits['segments']} segments, {kib:.1f} KiB of journal: the next turn "
            "takes them in, or flywheel ingest now"
        )
    else:
        click.echo("waiting   nothing")
    if not found["projects"]:
        click.echo("projects  none yet: flywheel demo, or flywheel init FOLDER")
    for name, one in found["projects"].items():
        serves = f"{one['champion']} serves, {one['previous'] or 'nothing'} before it"
        click.echo(f"\n{name}: {serves if one['champion'] else 'nothing serves it here'}")
        click.echo(f"  turn under way   {one['turn'] or 'none'}")
        for key, count in one["counts"].items():
            click.echo(f"  {key:<16} {count}")
        if one["last_decision"]:
            said = one["last_decision"]
            click.echo(
                f"  last decision    {said['outcome']} by the {said['gate']} gate: {said['reason']}"
            )


def status(home: Any) -> dict[str, Any]:
    """The same, as one object."""
    import msgspec

    from serving.routing import read
    from serving.server import running
    from storage.overview import known_projects, waiting
    from storage.queries import counts, records
    from tasks.turns import turn_under_way

    server, routing = running(home), read(home)
    projects: dict[str, Any] = {}
    for name in sorted({*routing.projects, *known_projects(home)}):
        route = routing.projects.get(name)
        turn = turn_under_way(home, name)
        decisions = sorted(records(home, "decision", project=name), key=lambda one: one.at)
        projects[name] = {
            "champion": route.champion.name if route else None,
            "previous": route.previous.name if route and route.previous else None,
            "turn": turn.run_id if turn else None,
            "counts": counts(home, name),
            "last_decision": msgspec.to_builtins(decisions[-1]) if decisions else None,
        }
    return {
        "home": str(home.root),
        "server": msgspec.to_builtins(server) if server else None,
        "waiting": waiting(home),
        "projects": projects,
    }
