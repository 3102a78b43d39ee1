"""Metrics on their way to MLflow, the plots of a run's page, alarms as tags."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from flywheel.home import Home
from tasks.tracking_metrics import named, raise_alarms, rows_of, send, sent_so_far, words_of
from trainer.alarms import Heldout, alarms


def lines(count: int = 10) -> list[dict[str, Any]]:
    """A run that samples while it trains, and whose entropy falls away."""
    return [
        {
            "step": step, "loss": 1 / step, "learning_rate": 1e-3, "grad_norm": 0.4,
            "loss/rl": -0.1, "rl/entropy": 1.0 if step < 5 else 0.01, "rl/mismatch_kl": 1e-4,
            "reward": step / 10, "reward/<b>Köln</b>": 0.5, "reward_std": None,
            "rl/clipped_positive": 0.1, "rl/effective_sample_size": 0.9, "staleness_mean": 2.0,
            "staleness_max": 8.0, "trained_length_p50": 20.0, "flops_share": 0.4,
        }
        for step in range(1, count + 1)
    ]  # fmt: skip


def test_names_are_such_as_mlflow_takes_and_stay_apart() -> None:
    for name in ("loss", "rl/entropy", "reward/north-west 2", "trained_length_p50", "reward/Köln"):
        assert named(name) == name
    odd = [named(f"reward/{one}") for one in ("<b>", "[b]", "..", ".", "", "a//b", "x" * 999)]
    assert len(set(odd)) == len(odd)
    assert all(len(one) < 250 and "//" not in one and ".." not in one for one in odd)


def test_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert rows_of(path) == []
    path.write_text('{"step": 1, "loss": 2.0}\n[1]\n{"step": 2, "lo')
    assert rows_of(path) == [{"step": 1, "loss": 2.0}]


def test_a_step_says_its_reward_beside_its_loss_where_it_has_one() -> None:
    assert words_of({"step": 1, "loss": 2.0, "reward": 0.25}) == "loss 2.0000, reward 0.250"
    assert words_of({"step": 1, "loss": 2.0, "reward": None}) == "loss 2.0000"


def test_a_runs_page_has_a_panel_for_each_thing_that_was_measured() -> None:
    from tasks.tracking_page import run_plot

    raised = alarms(lines())
    figure = run_plot(lines(), raised)
    titles = [one.get_title() for one in figure.axes if one.get_title()]
    assert {"Loss", "Reward", "Reward by slice", "Entropy", "Staleness", "Held back"} <= set(titles)
    assert "entropy fell from 1.000 to 0.010" in " ".join(figure.get_supxlabel().split())
    supervised = run_plot([{"step": 1, "loss": 1.0, "learning_rate": 0.1}])
    shown = {one.get_title() for one in supervised.axes if one.get_title()}
    assert shown == {"Loss", "Learning rate"}


@pytest.mark.slow
def test_steps_are_sent_once_with_alarms_and_plots(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from serving.registry import open_mlflow
    from tasks.tracking_page import log_training_plots

    client = open_mlflow(Home(tmp_path / "home"))
    artifacts = (tmp_path / "artifacts").as_uri()
    experiment = client.create_experiment("shop", artifact_location=artifacts)
    run = client.create_run(experiment).info.run_id
    assert sent_so_far(client, run, lines()) == -1
    send(client, run, lines(4))
    assert sent_so_far(client, run, lines()) == 4
    send(client, run, [row for row in lines() if row["step"] > 4])
    assert [one.step for one in client.get_metric_history(run, "rl/entropy")] == list(range(1, 11))
    metrics = client.get_run(run).data.metrics
    assert metrics["reward"] == 1.0 and metrics[named("reward/<b>Köln</b>")] == 0.5
    assert "reward_std" not in metrics, "what is not known is not sent"

    with caplog.at_level(logging.WARNING, "flywheel.run"):
        raise_alarms(client, run, lines())
        raised = raise_alarms(client, run, lines(), Heldout(0.0, -0.1, 0.1))
    tags = client.get_run(run).data.tags
    assert "entropy fell" in tags["flywheel.alarm.entropy_collapse"]
    assert "held-out problems" in tags["flywheel.alarm.hacking"]
    assert [one.levelname for one in caplog.records] == ["WARNING"] * 2, "each is told once"
    log_training_plots(client, run, lines(), raised)
    log_training_plots(client, run, [], [])
    paths = {one.path for one in client.list_artifacts(run, "plots")}
    assert paths == {"plots/training.png", "plots/run.png"}
    assert json.dumps(metrics)
