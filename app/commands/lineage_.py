"""`flywheel lineage`: the chain from a deployment to the traces that made it, and back."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start

if TYPE_CHECKING:
    from storage.lineage import Link

SHOWN = 20
"""Lines of one kind; a run may have hundreds of problems."""
OF_WHAT = (
    "ID is missing: a deployment (inbox-v1), decision, evaluation, checkpoint, run, dataset, "
    "problem or trace (the sender's id will do); `flywheel status` names the deployments"
)


@click.command("lineage")
@click.argument("id", required=False, metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(id: str | None, as_json: bool) -> None:
    """The chain of ID: a deployment, decision, evaluation, checkpoint, run, dataset, problem or
    trace. Of many of a kind the first 20 are shown; --json has all.
    """
    if id is None:
        raise click.UsageError(OF_WHAT)
    home = start().at()
    from storage.lineage import lineage

    chain = lineage(home, id)
    if as_json:
        echo_json({"id": id, "links": [msgspec.to_builtins(link) for link in chain]})
        return
    for line in lines(chain):
        echo(line)


def lines(chain: "list[Link]") -> Iterator[str]:
    """The chain, link by link; of a kind that has many the first, and how many more there are."""
    of, seen = Counter(link.kind for link in chain), Counter[str]()
    for link in chain:
        seen[link.kind] += 1
        if seen[link.kind] <= SHOWN:
            yield f"{link.kind:<11} {link.id}  {link.note}"
        elif seen[link.kind] == of[link.kind]:
            yield f"{link.kind:<11} and {of[link.kind] - SHOWN} more: --json has all"
