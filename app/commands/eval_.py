"""`flywheel eval`: any model on any environment."""

import math
from pathlib import Path
from typing import Any

import click

from app.cli import echo, echo_json
from app.start import start
from flywheel.errors import FlywheelError


class Finite(click.FloatRange):
    """No `nan`, which no range refuses, and no `inf`: neither can be kept as JSON."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be meant", param, ctx)
        return number


@click.command("eval")
@click.argument("environment", metavar="ENV", default="")
@click.option(
    "--model",
    help="A URL of an OpenAI-compatible server, a project's deployment (NAME-vN, champion), or "
    "base, its base model; without a project the one under FLYWHEEL_MODELS.",
)
@click.option("--model-name", help="What the server at the URL calls the model.")
@click.option("--key-env", metavar="VARIABLE", help="Environment variable with the server's key.")
@click.option(
    "--tokens",
    is_flag=True,
    default=None,
    help="The server at the URL gives token ids and log-probabilities (vLLM).",
)
@click.option("--n", "samples", type=click.IntRange(1, 1000), help="Attempts a problem (4).")
@click.option("--concurrency", type=click.IntRange(1, 4096), default=32, show_default=True)
@click.option("--limit", type=click.IntRange(1), help="The first so many problems.")
@click.option("--split", type=click.Choice(["heldout", "train", "all"]), help="Side (heldout).")
@click.option(
    "--temperature",
    type=Finite(0, 2),
    help="Answers are sampled at (the project's [rollouts], else 1.0).",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help="Of one answer (the project's [rollouts], else 1024).",
)
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Of the environment's configuration.",
)
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    help="Folder with a flywheel.toml (this one, or the only one of the home).",
)
@click.option(
    "--pass-mark",
    type=Finite(),
    help="Score from which an attempt counts as passed (1.0).",
)
@click.option("--price-input", type=Finite(0), help="Dollars a million tokens read.")
@click.option("--price-output", type=Finite(0), help="Dollars a million tokens answered.")
@click.option(
    "--resume",
    metavar="[RUN]",
    is_flag=False,
    flag_value="last",
    help="Go on with a run; without a name the newest that is not done.",
)
@click.option("--list", "listing", is_flag=True, help="The evaluations of this home.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(listing: bool, as_json: bool, **asked: Any) -> None:  # fmt: skip
    """Evaluate a model on ENV: a shipped or installed name, package.module:Class, file.py:Class, a
    project's folder, or verifiers:NAME. Afterwards the report is in the home, evals/RUN."""
    settings = start(progress=True)
    from app.evaluation import run
    from app.evaluation_words import listed, shown

    if listing:
        found = listed(settings.at())
        echo_json({"evaluations": found}) if as_json else echo(_list(found))
        return
    summary = run(settings, asked)
    echo_json(summary) if as_json else echo(shown(summary))
    episodes = summary["episodes"]
    if episodes["done"] and not episodes["graded"]:
        why = next(iter(summary["not_graded"]), "no reason was kept")
        raise FlywheelError(f"nothing could be graded: {why}")


def _list(found: list[dict[str, Any]]) -> str:
    from app.evaluation_words import named

    if not found:
        return "no evaluations in this home yet: `flywheel eval ENV --model URL`"
    return "\n".join(
        f"{one['run']:<44} {(one['begun'] or 'unknown')[:16]:<16} {one['state']:<9} "
        f"{one['reward']:>8}  {named(one['environment'])} by "
        f"{one['model']}"
        for one in found
    )
