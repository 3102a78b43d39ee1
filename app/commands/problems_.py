"""`flywheel problems`: mined from traffic, listed, shown."""

from pathlib import Path
from typing import Any

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start
from flywheel.plain import many

_BAR = 24
"""Characters of the longest bar."""
_json = click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
_project = click.argument("project", type=click.Path(path_type=Path), default=".")


@click.group("problems")
def command() -> None:
    """Problems: mined from traffic, listed, shown."""


@command.command("mine")
@_project
@click.option("--limit", type=click.IntRange(1), help="Problems picked, both sides together.")
@click.option("--since", help="Only traffic since then counts: 2026-11-03, or 12h, 7d, 4w.")
@_json
def mine(project: Path, limit: int | None, since: str | None, as_json: bool) -> None:
    """Cluster PROJECT's traffic and pick what the next turns sample and evaluate first."""
    home = start(progress=True).at()
    from flywheel.project import load_project
    from tasks.problems import mine_traffic, moment_of

    found = mine_traffic(
        home, load_project(project), limit=limit, since=moment_of(since) if since else None
    )
    if as_json:
        echo_json(found)
        return
    picked = found["picked"]
    echo(
        f"{many(found['traces'], 'trace')}, {many(found['problems'], 'problem')}, "
        f"{found['heldout']} of them held out, {found['without_answer']} without a known answer"
    )
    for reason, count in found["left_out"].items():
        echo(f"  left out: {count} {reason}")
    echo(f"picked {picked['train']} for training, {picked['heldout']} for evaluation")
    if found["remedy"]:
        echo(f"  {found['remedy']}")
    echo("")
    _clusters(found["clusters"], found["champion"])


@command.command("list")
@_project
@click.option("--limit", type=click.IntRange(1), default=40, show_default=True, help="At most.")
@click.option("--split", type=click.Choice(["train", "heldout"]), help="Only this side.")
@_json
def list_(project: Path, limit: int, split: str | None, as_json: bool) -> None:
    """PROJECT's stored problems: the picked first, then the most asked."""
    home = start().at()
    from flywheel.project import load_project
    from tasks.problems import stored

    found = [one for one in stored(home, load_project(project)) if split in (None, one.split)]
    rows = [_row(one) for one in found[:limit]]
    if as_json:
        echo_json({"problems": rows, "count": len(found)})
        return
    echo(f"{'id':<12}  {'side':<8}{'pick':>5}{'asked':>7}{'passes':>8}  text")
    for row in rows:
        pick = "" if row["pick"] is None else str(row["pick"] + 1)
        echo(
            f"{row['id'][:12]}  {row['split']:<8}{pick:>5}{row['traffic'] or '?':>7}"
            f"{_passes(row['pass_rate']):>8}  {_line(row['text'], 60)}"
        )
    if len(found) > limit:
        echo(f"… and {len(found) - limit} more (--limit)")


@command.command("show")
@click.argument("id")
@_json
def show(id: str, as_json: bool) -> None:
    """The problem ID whole: its prompt, its answer, and what is known of it."""
    home = start().at()
    from tasks.problems import found

    problem = found(home, id)
    if as_json:
        echo_json({"id": problem.id, **msgspec.to_builtins(problem)})
        return
    row = _row(problem)
    for name in ("id", "environment", "split", "slice", "cluster", "traffic", "trace_id"):
        echo(f"{name:<12} {row[name]}")
    echo(f"{'passes':<12} {_passes(row['pass_rate'])}")
    answer = problem.answer
    why = problem.attributes.get("truth", "not known")
    known = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    echo(f"{'answer':<12} {known if answer is not None else f'none: {why}'}")
    for message in problem.messages:
        echo(f"\n--- {message.role}\n{message.text}")


def _clusters(clusters: list[dict[str, Any]], champion: str) -> None:
    echo(f"passes = full marks of {champion}")
    echo(f"{'traffic':<{_BAR + 8}}{'problems':>9}{'passes':>8}{'picked':>8}  asked most")
    top = max((one["share"] for one in clusters), default=1.0)
    for one in clusters:
        bar = "█" * max(1, round(_BAR * one["share"] / top))
        numbers = f"{one['problems']:>9}{_passes(one['pass_rate']):>8}{one['picked']:>8}"
        echo(f"{one['share']:>6.1%} {bar:<{_BAR + 1}}{numbers}  {_line(one['name'], 40)}")
        echo(f"{'':<{_BAR + 35}}{_line(one['example'], 60)}")


def _row(problem: Any) -> dict[str, Any]:
    told = problem.attributes
    hard = told.get("difficulty")
    return {
        "id": problem.id,
        "environment": problem.environment,
        "split": problem.split,
        "slice": problem.slice,
        "cluster": told.get("cluster"),
        "traffic": told.get("traffic"),
        "pass_rate": None if hard is None else round(1 - hard, 4),
        "pick": told.get("pick"),
        "answered": problem.answer is not None,
        "trace_id": problem.trace_id,
        "text": problem.text,
    }


def _passes(rate: float | None) -> str:
    return "untried" if rate is None else f"{rate:.0%}"


def _line(text: str, width: int) -> str:
    """One line that a terminal shows as it is, whatever somebody wrote."""
    plain = "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))
    return plain if len(plain) <= width else plain[: width - 1] + "…"
