"""A run as MLflow shows it: parameters, live metrics, data gate's report, evaluation, decision.

One MLflow run a turn, found again by its tag when the turn is resumed; no metric is sent twice.
"""

import contextlib
import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec

from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.progress import report
from serving.registry import telling, tracking_uri
from tasks.gates import Verdict
from tasks.turns import Turn, home, project_of, run_folder

TAG = "flywheel.run_id"
P = ParamSpec("P")


def client_at(place: Home) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri(place))


def experiment_of(client: Any, turn: Turn) -> str:
    from mlflow.exceptions import MlflowException

    known = client.get_experiment_by_name(turn.project)
    if known:
        return str(known.experiment_id)
    artifacts = (home().mlflow / "artifacts" / turn.project).as_uri()
    try:
        return str(client.create_experiment(turn.project, artifact_location=artifacts))
    except MlflowException:
        known = client.get_experiment_by_name(turn.project)  # another process was faster
        if known is None:
            raise
        return str(known.experiment_id)


class Tracked:
    """One turn's MLflow run. `follow` sends what the trainer wrote since the last call."""

    def __init__(self, client: Any, run_id: str, metrics: Path, sent: int) -> None:
        self.client, self.run_id, self.metrics = client, run_id, metrics
        self.sent = sent
        """The last step whose metrics are there."""
        self.steps: int | None = None
        """Of the whole training; None = not known yet."""

    @classmethod
    @contextlib.contextmanager
    def train(cls, turn: Turn, dataset: Verdict) -> Iterator["Tracked"]:
        """The turn's run, begun or taken up again; marked failed if the block fails."""
        with telling(home()):
            client = client_at(home())
            run_id = run_of(client, turn)
            sent = max((one.step for one in client.get_metric_history(run_id, "loss")), default=-1)
            tracked = cls(client, run_id, run_folder(turn) / "metrics.jsonl", sent)
            tracked.describe(turn, dataset)
            try:
                yield tracked
            except BaseException:
                with contextlib.suppress(FlywheelError), telling(home()):
                    client.set_terminated(run_id, "FAILED")  # why we failed must not be hidden
                raise

    def describe(self, turn: Turn, dataset: Verdict) -> None:
        from mlflow.entities import Param, RunTag

        project = project_of(turn)
        train = project.train
        self.steps = train.epochs * math.ceil(dataset["rows"] / train.batch)
        report("training", 0, self.steps)
        settings = {
            **{f"train.{k}": v for k, v in project.train.model_dump(mode="json").items()},
            **{f"rollouts.{k}": v for k, v in project.rollouts.model_dump(mode="json").items()},
            "champion": turn.champion,
            "dataset": dataset["dataset"],
            "rows": dataset["rows"],
        }
        known = self.client.get_run(self.run_id).data.params
        params = [Param(k, str(v)) for k, v in settings.items() if k not in known]
        tags = [
            RunTag("flywheel.dataset", dataset["dataset"]),
            RunTag("flywheel.champion", turn.champion),
        ]
        self.client.log_batch(self.run_id, params=params, tags=tags)
        self.client.log_dict(self.run_id, {"rules": dataset["rules"]}, "dataset/rules.json")
        self.client.log_artifact(self.run_id, str(home().path(dataset["report"])), "dataset")

    def follow(self) -> None:
        """Sends the steps that were not sent yet."""
        from mlflow.entities import Metric

        rows = self._unsent()
        now = int(time.time() * 1000)
        batch = [
            Metric(name, float(value), now, row["step"])
            for row in rows
            for name, value in row.items()
            if name != "step" and isinstance(value, int | float)
        ]
        for start in range(0, len(batch), 900):
            self.client.log_batch(self.run_id, metrics=batch[start : start + 900])
        if rows:
            self.sent = rows[-1]["step"]
            report("training", self.sent, self.steps, f"loss {rows[-1]['loss']:.4f}")

    def _unsent(self) -> list[dict[str, Any]]:
        rows = []
        if self.metrics.exists():
            for line in self.metrics.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # the line being written
                    rows.append(json.loads(line))
        return [row for row in rows if row["step"] > self.sent]

    def finish(self, found: dict[str, Any]) -> None:
        self.client.log_metric(self.run_id, "training_seconds", found["seconds"])
        self.client.set_tag(self.run_id, "flywheel.checkpoint", found["checkpoint_id"])
        self.client.set_terminated(self.run_id, "FINISHED")


def run_of(client: Any, turn: Turn) -> str:
    """The id of the turn's MLflow run, made if there is none."""
    experiment = experiment_of(client, turn)
    known = client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{turn.run_id}'")
    if known:
        client.update_run(known[0].info.run_id, status="RUNNING")
        return str(known[0].info.run_id)
    name = f"turn {turn.run_id[:8]}"
    return str(client.create_run(experiment, tags={TAG: turn.run_id}, run_name=name).info.run_id)


def _telling_of_mlflow(function: Callable[P, None]) -> Callable[P, None]:
    """Its errors, and those of its database, are told as ours."""

    @functools.wraps(function)
    def told(*given: P.args, **named: P.kwargs) -> None:
        with telling(home()):
            function(*given, **named)

    return told


@_telling_of_mlflow
def log_evaluation(mlflow_run_id: str, said: Verdict) -> None:
    """The comparison: numbers as metrics, slices as a table, the verdict as text."""
    client = client_at(home())
    overall = said["overall"]
    for name in ("champion", "candidate", "difference", "low", "high"):
        if overall[name] is not None:
            client.log_metric(mlflow_run_id, f"heldout_{name}", overall[name])
    rows = [overall, *said["slices"]]
    client.log_table(
        mlflow_run_id,
        {name: [row[name] for row in rows] for name in overall},
        artifact_file="evaluation/slices.json",
    )
    client.log_text(mlflow_run_id, said["reason"], "evaluation/verdict.txt")


@_telling_of_mlflow
def log_decision(mlflow_run_id: str, outcome: str, text: str) -> None:
    client = client_at(home())
    client.set_tag(mlflow_run_id, "flywheel.decision", outcome)
    client.set_tag(mlflow_run_id, "mlflow.note.content", text)
    client.log_text(mlflow_run_id, text, "turn.md")
