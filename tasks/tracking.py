"""A run as MLflow shows it: parameters, live metrics, data, plots, evaluation, decision.

One MLflow run a turn or trial, found again by its tag when that is resumed; no metric is sent
twice, and whatever else is logged is written whole (`tasks.tracking_page`).
"""

import contextlib
import functools
import getpass
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.progress import report
from serving.registry import open_mlflow, telling
from tasks.gates import Verdict
from tasks.rl_problems import is_online
from tasks.tracking_data import log_made
from tasks.tracking_metrics import raise_alarms, rows_of, send, sent_so_far, words_of
from tasks.tracking_page import log_dataset, log_heldout_plot, log_table, log_training_plots
from tasks.turns import Turn, home, project_of, run_folder
from trainer.alarms import Heldout

TAG = "flywheel.run_id"
P = ParamSpec("P")
R = TypeVar("R")


def client_at(place: Home) -> Any:
    return open_mlflow(place)


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
            metrics = run_folder(turn) / "metrics.jsonl"
            sent = sent_so_far(client, run_id, rows_of(metrics))
            tracked = cls(client, run_id, metrics, sent)
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
        once = math.ceil(dataset["rows"] / train.batch)
        self.steps = train.rl.steps if is_online(project) else train.epochs * once
        report("training", 0, self.steps)
        settings = {
            **_flat("train", project.train.model_dump(mode="json")),
            **_flat("rollouts", project.rollouts.model_dump(mode="json")),
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
        if dataset["rules"]:
            log_table(self.client, self.run_id, dataset["rules"], "dataset/rules.json")
        self.client.log_artifact(self.run_id, str(home().path(dataset["report"])), "dataset")
        log_made(self.client, self.run_id, dataset["dataset"])

    def follow(self) -> None:
        """Sends the steps that were not sent yet, and raises alarms over all of them."""
        rows = rows_of(self.metrics)
        new = [row for row in rows if row["step"] > self.sent]
        if not new:
            return
        send(self.client, self.run_id, new)
        raise_alarms(self.client, self.run_id, rows)
        self.sent = new[-1]["step"]
        report("training", self.sent, self.steps, words_of(new[-1]))

    def finish(self, found: dict[str, Any]) -> None:
        rows = rows_of(self.metrics)
        log_training_plots(
            self.client, self.run_id, rows, raise_alarms(self.client, self.run_id, rows)
        )
        self.client.log_metric(self.run_id, "training_seconds", found["seconds"])
        self.client.set_tag(self.run_id, "flywheel.checkpoint", found["checkpoint_id"])
        self.client.set_terminated(self.run_id, "FINISHED")


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Dotted keys: a section's own fields are parameters too."""
    if isinstance(value, dict):
        return {
            key: one for part in value for key, one in _flat(f"{name}.{part}", value[part]).items()
        }
    return {name: value}


def run_of(client: Any, turn: Turn, kind: str = "turn") -> str:
    """The id of the turn's MLflow run, made if there is none."""
    experiment = experiment_of(client, turn)
    known = client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{turn.run_id}'")
    if known:
        client.update_run(known[0].info.run_id, status="RUNNING")
        return str(known[0].info.run_id)
    name = f"{kind} {turn.run_id[:8]}"
    tags = {
        TAG: turn.run_id,
        "flywheel.kind": kind,
        "mlflow.source.name": f"flywheel {kind} {turn.project}",
        "mlflow.source.type": "JOB",
        "mlflow.user": getpass.getuser(),
    }
    return str(client.create_run(experiment, tags=tags, run_name=name).info.run_id)


def _telling_of_mlflow(function: Callable[P, R]) -> Callable[P, R]:
    """Its errors, and those of its database, are told as ours."""

    @functools.wraps(function)
    def told(*given: P.args, **named: P.kwargs) -> R:
        with telling(home()):
            return function(*given, **named)

    return told


@_telling_of_mlflow
def log_rollouts(mlflow_run_id: str, dataset_id: str) -> None:
    """What a run sampled and learnt from, as another input of it."""
    log_made(client_at(home()), mlflow_run_id, dataset_id, rollouts=True)


@_telling_of_mlflow
def log_evaluation(
    turn: Turn, mlflow_run_id: str, said: Verdict, pairs: list[dict[str, Any]]
) -> None:
    """The comparison: numbers as metrics, slices and pairs of answers as tables, the plot, the
    held-out set as an input."""
    client = client_at(home())
    overall = said["overall"]
    known = client.get_run(mlflow_run_id).data.metrics
    for name in ("champion", "candidate", "difference", "low", "high"):
        if overall[name] is not None and known.get(f"heldout_{name}") != overall[name]:
            client.log_metric(mlflow_run_id, f"heldout_{name}", overall[name])
    log_table(client, mlflow_run_id, [overall, *said["slices"]], "evaluation/slices.json")
    log_table(client, mlflow_run_id, pairs, "evaluation/pairs.json")
    log_heldout_plot(client, mlflow_run_id, said)
    if overall["difference"] is not None:
        gained = Heldout(overall["difference"], overall["low"], overall["high"])
        raise_alarms(client, mlflow_run_id, rows_of(run_folder(turn) / "metrics.jsonl"), gained)
    client.log_text(mlflow_run_id, said["reason"], "evaluation/verdict.txt")
    log_dataset(
        client,
        mlflow_run_id,
        name=f"{turn.project}-heldout",
        digest=said["heldout"],
        folder=run_folder(turn),
        context="evaluation",
        profile={
            "num_rows": overall["problems"],
            **{one["name"]: one["problems"] for one in said["slices"]},
        },
    )


@_telling_of_mlflow
def begin_trial(turn: Turn, challenger: dict[str, Any]) -> str:
    """The trial's own run: what is compared with what."""
    from mlflow.entities import Param

    client = client_at(home())
    run_id = run_of(client, turn, "trial")
    known = client.get_run(run_id).data.params
    told = {"champion": turn.champion, "candidate": challenger["name"]}
    params = [Param(name, value) for name, value in told.items() if name not in known]
    client.log_batch(run_id, params=params)
    return run_id


@_telling_of_mlflow
def log_decision(mlflow_run_id: str, outcome: str, text: str, file: str = "turn.md") -> None:
    """The decision's text as the run's description; the run is over."""
    client = client_at(home())
    client.set_tag(mlflow_run_id, "flywheel.decision", outcome)
    client.set_tag(mlflow_run_id, "mlflow.note.content", text)
    client.log_text(mlflow_run_id, text, file)
    if client.get_run(mlflow_run_id).info.status == "RUNNING":
        client.set_terminated(mlflow_run_id, "FINISHED")
