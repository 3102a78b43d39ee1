"""`flywheel promote`: the open turn's end, promotion or refusal."""

from pathlib import Path

import click

from app.cli import echo_json
from app.start import start, turnable


@click.command("promote")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, as_json: bool) -> None:
    """Promote the open turn's candidate, if the gates let it."""
    folder = turnable(project, start(progress=True))
    from flows.promote import promote

    found = promote(folder)
    if as_json:
        echo_json(found)
    else:
        click.echo(f"{found['decision']}: {found['reason']}; serving {found['deployment']}")
