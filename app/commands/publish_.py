"""`flywheel publish`: the store's tables, raw bytes and datasets into the lake."""

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from flywheel.plain import many


@click.command("publish")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(as_json: bool) -> None:
    """Publish what was committed since the last time to FLYWHEEL_LAKE."""
    home = start(progress=True).at()
    from storage.publish import publish

    found = publish(home)
    if as_json:
        echo_json(msgspec.to_builtins(found))
        return
    how = "anew" if found.whole else "more"
    echo(f"{found.url}: manifest {found.manifest} at sequence {found.sequence}, "
         f"{many(found.parts, 'part')} {how} with {many(found.rows, 'row')}, "
         f"{many(found.files, 'file')}")  # fmt: skip
