"""An estimate's end: its plot, its place in the ledger, one object for scripts.

Enters what was estimated; leaves `estimate.json` and `estimate.png` beside the run, and a Decision
that names them as evidence. The decision bears no deployment and no run: it decides nothing of what
serves, and stands beside a version's own decisions, not in their place.
"""

from typing import TYPE_CHECKING, Any

import msgspec
from prefect import task

from flywheel.ids import new_ulid
from flywheel.lineage import Decision
from tasks.estimate_verdict import OUTCOMES, Estimates
from tasks.step import worth_another_try
from tasks.turns import Turn, home, note, run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GATE = "estimate"
_COLORS = {"replay": "#2563eb", "slice": "#6b7280", "logged": "#2f9e6e"}


@task(retries=2, retry_delay_seconds=1, retry_condition_fn=worth_another_try)
def conclude_estimate(
    turn: Turn, challenger: dict[str, Any], found: Estimates, by: str
) -> dict[str, Any]:
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.moments import moment
    from tasks.report import let_go

    folder = run_folder(turn)
    report: dict[str, Any] = {
        "project": turn.project,
        "run_id": turn.run_id,
        **msgspec.to_builtins(found),
        "plot": home().relative(folder / "estimate.png"),
    }
    plot(report).savefig(folder / "estimate.png", dpi=120)
    note(turn, GATE, report)
    decision = Decision(
        id=new_ulid(),
        project=turn.project,
        outcome=OUTCOMES[found.verdict],
        gate=GATE,
        reason=f"{found.candidate} against {found.champion}: {found.reason}",
        by=by,
        at=moment(home()),
        evidence={name: report[name] for name in ("candidate", "champion", "run_id", "verdict",
                                                  "reason", "replay", "logged", "plot")},
    )  # fmt: skip
    Inbox(home()).append([decision], name=f"decision-{turn.run_id}-{GATE}")
    commit(home())
    let_go(challenger)
    return report


def plot(report: dict[str, Any]) -> "Figure":
    """The difference to what was served, with its interval: by replay, slice by slice, and by
    logged choices."""
    from matplotlib.figure import Figure

    replay, logged = report["replay"], report["logged"]
    rows = [("replay", "replay", replay["overall"], replay["compared"])]
    if len(replay["slices"]) > 1:
        rows += [("slice", one["name"][:40], one, one["problems"]) for one in replay["slices"][:20]]
    rows.append(("logged", "logged choices", logged, logged["answers"]))
    figure = Figure(figsize=(7, 1.6 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, (kind, _, one, _) in enumerate(rows):
        if one["difference"] is None:
            axes.text(0, place, " cannot tell", va="center", color=_COLORS["slice"], fontsize=8)
        elif one["low"] is None:
            axes.plot([one["difference"]], [place], "o", mfc="none", color=_COLORS[kind])
        else:
            ends = [[one["difference"] - one["low"]], [one["high"] - one["difference"]]]
            axes.errorbar([one["difference"]], [place], xerr=ends, fmt="o", capsize=3,
                          color=_COLORS[kind])  # fmt: skip
    axes.axvline(0, color="#d1d5db", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{name} ({count})" for _, name, _, count in rows])
    axes.invert_yaxis()
    axes.set(
        xlabel=f"reward less {report['champion']}'s",
        title=f"{report['candidate']} on recent traffic: {report['verdict']}",
    )
    return figure
