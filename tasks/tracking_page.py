"""What an MLflow run's page shows beside parameters and metrics: data, plots, tables, pairs.

Enter a client, a run's id and plain data; leave artifacts and dataset inputs of the run. Every one
is written whole under its own name, so that a step that is done again changes nothing.
"""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.alarms import Alarm
from trainer.panels import MOST_LINES, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INPUTS = {"training": "training", "evaluation": "evaluation"}
_OLD, _NEW, _GRID = "#6b7280", "#2563eb", "#d1d5db"
"""The champion, the candidate, and lines behind them."""
_LINES = (_NEW, "#2f9e6e", "#e07b39", "#8b5cf6", _OLD, "#0ea5a5")
_ALARMED = "#d1495b"
_ACROSS = 3
"""Panels in a row."""
_TABLES = "mlflow.loggedArtifacts"


def log_dataset(
    client: Any,
    run_id: str,
    *,
    name: str,
    digest: str,
    folder: Path,
    context: str,
    profile: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]] = (),
) -> None:
    """The dataset as an input of the run: a name, its id as digest, its folder as source.

    Args:
        context: training or evaluation.
        profile: counts, as people want to see them.
        columns: as MLflow's schemas name them.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    made = Dataset(
        name=name,
        digest=digest,
        source_type="local",
        source=json.dumps({"uri": folder.as_uri()}),
        schema=json.dumps({"mlflow_colspec": list(columns)}) if columns else None,
        profile=json.dumps(profile),
    )
    tag = InputTag("mlflow.data.context", _INPUTS[context])
    client.log_inputs(run_id, [DatasetInput(made, [tag])])


def log_table(client: Any, run_id: str, rows: Sequence[Mapping[str, Any]], file: str) -> None:
    """A table as MLflow's pages show it. Its own call would add the rows to those already there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    data = [[row.get(name) for name in names] for row in rows]
    client.log_text(run_id, json.dumps({"columns": names, "data": data}), file)
    known = json.loads(client.get_run(run_id).data.tags.get(_TABLES, "[]"))
    this = {"path": file, "type": "table"}
    if this not in known:
        client.set_tag(run_id, _TABLES, json.dumps([*known, this]))


def log_training_plots(
    client: Any, run_id: str, metrics: Sequence[Mapping[str, Any]], alarms: Sequence[Alarm]
) -> None:
    """Loss and learning rate over the steps; and the run on one page, a panel for each thing that
    was measured."""
    if {"loss", "learning_rate"} <= _measured(metrics):
        client.log_figure(run_id, training_plot(metrics), "plots/training.png")
    if drawn(_measured(metrics)):
        client.log_figure(run_id, run_plot(metrics, alarms), "plots/run.png")


def log_heldout_plot(client: Any, run_id: str, said: Mapping[str, Any]) -> None:
    """Held-out reward by slice, champion beside candidate, with their intervals."""
    if said.get("by_slice"):
        client.log_figure(run_id, heldout_plot(said), "plots/heldout.png")


def training_plot(metrics: Sequence[Mapping[str, Any]]) -> "Figure":
    from matplotlib.figure import Figure

    # No pyplot: a Figure of its own needs no display and is freed with its last reference.
    figure = Figure(figsize=(7, 4), layout="constrained")
    loss = figure.add_subplot()
    steps = [row["step"] for row in metrics]
    loss.plot(steps, [row["loss"] for row in metrics], color=_NEW, label="loss")
    loss.set(xlabel="step", ylabel="loss", title="Training")
    loss.grid(color=_GRID, linewidth=0.5)
    rate = loss.twinx()
    rate.plot(
        steps,
        [row["learning_rate"] for row in metrics],
        color=_OLD,
        linestyle="--",
        label="learning rate",
    )
    rate.set_ylabel("learning rate")
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def run_plot(metrics: Sequence[Mapping[str, Any]], alarms: Sequence[Alarm] = ()) -> "Figure":
    """Small charts of all that a run measured, the same panels as the dashboard's; a red line where
    an alarm began, its reason below."""
    from matplotlib.figure import Figure

    panels = drawn(_measured(metrics))
    rows = -(-len(panels) // _ACROSS)
    figure = Figure(figsize=(4.2 * _ACROSS, 2.5 * rows + 0.5 * len(alarms)), layout="constrained")
    grid = figure.subplots(rows, _ACROSS, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        for color, (name, label) in zip(_LINES * MOST_LINES, panel.lines, strict=False):
            points = [(row["step"], row[name]) for row in metrics if _drawable(row.get(name))]
            axes.plot(*zip(*points, strict=True), color=color, label=label, linewidth=1.4,
                      marker="." if len(points) < 40 else "")  # fmt: skip
        axes.set_title(panel.title, fontsize=10)
        axes.set_ylabel(panel.unit, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(color=_GRID, linewidth=0.5)
        if len(panel.lines) > 1 or panel.lines[0][1].lower() not in panel.title.lower():
            axes.legend(fontsize=6)
        for one in alarms:
            axes.axvline(one.step, color=_ALARMED, linewidth=0.8, linestyle=":")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    if alarms:
        said = "\n".join(textwrap.fill(one.reason, 40 * _ACROSS) for one in alarms)
        figure.supxlabel(said, fontsize=8, color=_ALARMED)
    return figure


def _measured(metrics: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for row in metrics for name, value in row.items() if _drawable(value)}


def _drawable(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def heldout_plot(said: Mapping[str, Any]) -> "Figure":
    from matplotlib.figure import Figure

    rows = said["by_slice"]
    figure = Figure(figsize=(7, 1.6 + 0.5 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for side, color, shift in (("champion", _OLD, -0.12), ("candidate", _NEW, 0.12)):
        shown = [(place, row[side]) for place, row in enumerate(rows) if row[side][0] is not None]
        means = [mean for _, (mean, _, _) in shown]
        ends = [
            [0.0 if low is None else max(0.0, mean - low) for _, (mean, low, _) in shown],
            [0.0 if high is None else max(0.0, high - mean) for _, (mean, _, high) in shown],
        ]
        places = [place + shift for place, _ in shown]
        axes.errorbar(means, places, xerr=ends, fmt="o", color=color, capsize=3, label=side)
    names = [f"{row['name']} ({row['problems']})" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set(xlabel="reward", title=f"Held out: {said['challenger']['name']}")
    axes.grid(axis="x", color=_GRID, linewidth=0.5)
    figure.legend(loc="outside lower center", ncols=2)
    return figure
