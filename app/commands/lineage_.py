"""`flywheel lineage`: the chain from a deployment to the traces that made it, and back."""

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start


@click.command("lineage")
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(id: str, as_json: bool) -> None:
    """The chain of ID: a deployment, checkpoint, run, dataset, problem, trace or decision."""
    home = start().at()
    from storage.lineage import lineage

    chain = lineage(home, id)
    if as_json:
        echo_json({"id": id, "links": [msgspec.to_builtins(link) for link in chain]})
        return
    for link in chain:
        echo(f"{link.kind:<11} {link.id}  {link.note}")
