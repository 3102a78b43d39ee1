"""`flywheel demo`: the main job, from nothing to a better model that serves."""

from typing import Any

import click

from app.cli import echo_json
from app.start import start


@click.command("demo")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
@click.option("--turns", type=click.IntRange(1, 5), default=2, show_default=True)
def command(as_json: bool, turns: int) -> None:
    """Two turns of the wheel on a support inbox, with a real small model, on this machine."""
    settings = start(progress=True)
    from app.demo import prepare, run
    from flows.server import start_prefect

    home = prepare(settings)
    settings = start()
    start_prefect(home)
    found = run(home, settings, turns)
    if as_json:
        echo_json(found)
    else:
        show(found, str(home.root))


def show(found: dict[str, Any], home: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="What the wheel did")
    columns = ("", "held-out reward", "95% interval", "fresh traffic", "95% interval", "tokens", "")
    for name in columns:
        table.add_column(name)
    first = found["turns"][0]["evaluation"]
    fresh = found["fresh"][0]
    table.add_row("before", *held(first, "champion"), *seen(fresh), "")
    for number, turn in enumerate(found["turns"]):
        side = "candidate" if turn["decision"] == "promoted" else "champion"
        after = seen(found["fresh"][number + 1])
        told = held(turn["evaluation"], side)
        table.add_row(f"turn {number + 1}", *told, *after, turn["decision"])
    console.print(table)
    for number, turn in enumerate(found["turns"]):
        console.print(f"turn {number + 1}: {turn['decision']}: {turn['reason']}", soft_wrap=True)
        steps = [f"{name.replace('_', ' ')} {s:.0f} s" for name, s in turn["steps"].items()]
        console.print(f"  {turn['seconds']:.0f} s: {', '.join(steps)}", style="dim")
    serving = found["turns"][-1]["deployment"]
    console.print(
        f"\nLook around, with FLYWHEEL_HOME={home}:\n"
        f"  flywheel status\n"
        f"  flywheel lineage {serving}\n"
        f"  flywheel serve examples/support\n"
        f"  mlflow ui --backend-store-uri sqlite:///{home}/mlflow/mlflow.db",
        soft_wrap=True,
    )


def held(evaluation: dict[str, Any], side: str) -> tuple[str, str]:
    mean = evaluation[side]
    if mean is None:
        return "unknown", ""
    interval = evaluation.get(f"{side}_interval") or (None, None)
    return f"{mean:.2f}", span(*interval)


def seen(fresh: dict[str, Any]) -> tuple[str, str, str]:
    tokens = "unknown" if fresh["tokens"] is None else f"{fresh['tokens']:.1f}"
    return f"{fresh['reward']:.2f}", span(fresh["low"], fresh["high"]), tokens


def span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"
