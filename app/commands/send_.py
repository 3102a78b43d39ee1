"""`flywheel send`: what a machine without the database captured, to the one that commits."""

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from flywheel.plain import many


@click.command("send")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(as_json: bool) -> None:
    """Leave what waits here in FLYWHEEL_LAKE for `flywheel ingest` of another machine."""
    home = start(progress=True).at()
    from storage.lake_inbox import send
    from storage.publish import lake_of

    found = send(home, lake_of(home))
    if as_json:
        echo_json(msgspec.to_builtins(found))
    else:
        echo(f"sent {many(found.segments, 'segment')} and {many(found.raw, 'raw object')}")
