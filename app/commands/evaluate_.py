"""`flywheel evaluate`: the open turn up to its evaluation."""

from pathlib import Path

import click

from app.cli import echo, echo_json
from app.start import start, turnable


@click.command("evaluate")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: Path, as_json: bool) -> None:
    """Compare the open turn's candidate with the champion on held-out problems."""
    folder = turnable(project, start(progress=True))
    from flows.evaluate import evaluate

    found = evaluate(folder)
    if as_json:
        echo_json(found)
    else:
        echo(f"{found['reason']}")
