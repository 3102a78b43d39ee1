"""`flywheel variant`: what serves, made faster."""

import getpass
import sys
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable


@click.command("variant")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--quantise", type=click.Choice(["int8"]), help="Weights in eight bits.")
@click.option("--speculate", is_flag=True, help="Guess tokens ahead: the same answers, sooner.")
@click.option("--version", help="Of the registered model; without it, the champion.")
@click.option("--keep", is_flag=True, help="Do not promote it where it passes.")
@click.option("--by", default=getpass.getuser, show_default="you", help="Who asks.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    project: Path, quantise: str | None, speculate: bool, version: str | None, keep: bool, by: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Make a faster variant of what serves PROJECT, and promote it if it is not worse and cheaper.

    Both answer the held-out problems; seconds a token are measured side by side. Exit code 3: it
    was refused.
    """
    if (quantise is None) != speculate:
        raise click.UsageError("take one: --quantise int8, or --speculate")
    folder = turnable(project, start(progress=True))
    from flows.variant import variant

    found: Any = variant(folder, version, quantise or "ngram", by, not keep)
    if as_json:
        echo_json(found)
    else:
        echo(f"{found['candidate']}, {found['how']} of {found['of']}: {found['decision']}")
        echo(f"  {found['reason']}")
        echo(f"  serving {found['deployment']}")
    sys.exit(0 if found["decision"] in ("promoted", "passed") else 3)
