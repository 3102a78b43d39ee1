"""`flywheel fidelity`: what of each source can be trained on, and what its sender must change."""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from flywheel.errors import UsageError
from flywheel.plain import many

if TYPE_CHECKING:
    from storage.fidelity_report import SourceFidelity


@click.command("fidelity")
@click.argument("project", required=False)
@click.option("--source", help="Of one sending system alone, as import:openai_chat.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(project: str | None, source: str | None, as_json: bool) -> None:
    """What share of each source's traces is trainable, renderable or to be looked at only; why not
    more, and what the sender must change to raise it. PROJECT is a project's name; without: all.
    """
    home = start().at()
    from app.named import projects
    from storage.fidelity_report import fidelity_of

    found = fidelity_of(home, project=project, source=source)
    if not found and project is not None and project not in (known := projects(home)):
        raise UsageError(
            f"no project {project} is known here; there is {', '.join(known) or 'none'}"
        )
    if as_json:
        echo_json({"sources": msgspec.to_builtins(found)})
        return
    if not found:
        echo("no trace is in the store")
    for one in found:
        for line in lines(one):
            echo(line)


def lines(one: "SourceFidelity") -> Iterator[str]:
    yield f"{one.project}  {one.source}: {many(one.traces, 'trace')}"
    shares = (f"{getattr(one, name) / one.traces:.0%} {name.replace('_', ' ')}"
              for name in ("trainable", "renderable", "view_only"))  # fmt: skip
    usage = f"; tokens stated for {one.usage_known / one.calls:.0%} of calls" if one.calls else ""
    yield f"  {', '.join(shares)}{usage}"
    for reason in one.reasons:
        alone = f", {reason.alone:,} for no other reason" if reason.alone else ""
        said = textwrap.shorten(reason.said, 90, placeholder=" …")
        counted = many(reason.traces, "trace")
        yield f"  {counted}: {reason.what}{alone} (as {reason.example[:12]}: {said})"
        if reason.remedy:
            yield from textwrap.wrap(
                reason.remedy, 96, initial_indent="    → ", subsequent_indent="      "
            )
