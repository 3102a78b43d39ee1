"""Trial: any version of the registry against the champion, through a turn's gates.

Enters a version that a person asked for, or registered; leaves an Evaluation, Decisions, and, where
it was asked for and every gate lets it, a promotion. Its steps are a turn's, kept by the trial's
id: the hash of project, configuration, champion, weights and held-out problems.
"""

import time
from pathlib import Path
from typing import Any

import msgspec
from prefect import task

from flywheel.errors import Refused
from flywheel.ids import digest
from flywheel.lineage import Deployment, Evaluation
from flywheel.project import Project, load_project
from flywheel.records import Record
from tasks.evaluate import answer_both
from tasks.gates import Verdict, record, verdict
from tasks.judging import graded_answers, judged, ruled
from tasks.mine import held_out, mined
from tasks.probing import have_probe
from tasks.promote import promoted
from tasks.step import step, worth_another_try
from tasks.tracking import begin_trial, log_evaluation
from tasks.turns import Turn, champion_of, configuration_of, environment_of, home, note


class Trial(Record, frozen=True, kw_only=True):
    """What was asked: plain data, so that Prefect can show it."""

    folder: str
    version: str
    promote: bool
    by: str
    reason: str = ""
    ask: str = ""
    """Id of the ask that it answers; "" = none, and its decisions are made once a trial."""


@task(retries=2, retry_delay_seconds=[1, 5], retry_condition_fn=worth_another_try)
def fetch_version(trial: Trial) -> dict[str, Any]:
    """The version as a deployment whose weights lie in the home.

    Raises:
        UsageError: there is no such version.
        Refused: its files are gone, or are no adapter.
    """
    from serving.registry import Registry
    from serving.registry_versions import deployment_of, version_of

    project, registry = load_project(Path(trial.folder)), Registry(home())
    version = version_of(registry, project.name, trial.version)
    found = deployment_of(registry, version, champion_of(project).base_model)
    made: dict[str, Any] = msgspec.to_builtins(found)
    return made


def open_trial(trial: Trial, challenger: dict[str, Any]) -> tuple[Turn, list[str]]:
    """The trial as its steps take it, and the problems that it compares on."""
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.snapshots import snapshot

    project = load_project(Path(trial.folder))
    champion, seen, at = champion_of(project), snapshot(home(), project.name), time.time_ns()
    configuration = configuration_of(project)
    problems = mined(project, seen.sequence, at)
    ids = held_out(project, problems)
    known = (champion.name, champion.checkpoint_id, challenger["name"], challenger["checkpoint_id"])
    this = Turn(
        run_id=digest("trial", project.name, configuration, *known, ids),
        project=project.name,
        folder=str(project.folder),
        start=champion,
        configuration=configuration,
        sequence=seen.sequence,
        snapshot=seen.digest,
        at=at,
    )
    Inbox(home()).append(problems, name=f"problems-{this.run_id}")
    commit(home())
    return this, ids


def evaluation_of(trial: Trial, turn: Turn, ids: list[str], challenger: dict[str, Any]) -> Verdict:
    """The gate's verdict on the version: by an evaluation that a turn made of it against the
    present champion, where it still holds; else by a new one. It is in the ledger."""
    if challenger["name"] == turn.champion:
        return verdict("learning", True, f"{turn.champion} serves already", challenger=challenger)
    said = taken_evaluation(turn, ids, challenger)
    if said is None:
        mlflow_run_id = begin_trial(turn, challenger)
        note(turn, "trial", {"mlflow_run_id": mlflow_run_id})
        answer_both(turn, ids, challenger)
        said = compare_version(turn, ids, challenger, mlflow_run_id)
    if "taken_from" not in said or (trial.promote and not said["passed"]):
        record(
            turn,
            said,
            by=trial.by,
            ask=trial.ask,
            evaluation_id=said["evaluation"],
            deployment=challenger["name"],
        )
    note(turn, "evaluation", said)
    return said


@step(minutes=10)
def compare_version(
    turn: Turn, problem_ids: list[str], challenger: dict[str, Any], mlflow_run_id: str
) -> Verdict:
    said, pairs = judged(turn, problem_ids, challenger)
    log_evaluation(turn, mlflow_run_id, said, pairs)
    return said


def taken_evaluation(turn: Turn, ids: list[str], challenger: dict[str, Any]) -> Verdict | None:
    """What the gate says now of a turn's own evaluation of the same weights. It holds where the
    champion, the environment and the way of asking are the same, and its problems are still held
    out. None = there is none that holds."""
    from storage.queries import problems, records

    project = load_project(Path(turn.folder))
    runs = {one.id: one for one in records(home(), "run", project=turn.project)}
    there = {one.id: one for one in problems(home(), turn.project, split="heldout")}
    for one in reversed(records(home(), "evaluation", project=turn.project)):
        run = runs.get(one.run_id)
        if run is None or not _holds(one, project, turn, challenger, run.config):
            continue
        seen = _problems_of(one)
        if seen is None or any(known not in there for known in seen):
            continue
        made = msgspec.structs.replace(turn, run_id=one.run_id)
        sides = graded_answers(made, "champion"), graded_answers(made, "candidate")
        said = ruled(one, project.gate, there, seen, challenger, sides)
        return {**said, "taken_from": one.run_id}
    return None


def _holds(
    one: Evaluation,
    project: Project,
    turn: Turn,
    challenger: dict[str, Any],
    config: dict[str, Any],
) -> bool:
    now = project.model_dump(mode="json")
    alike = ("gate", "rollouts", "environment")
    asked = {name: {**now[name], "promotion": None} for name in alike}
    then = {name: {**config.get(name, {}), "promotion": None} for name in alike}
    return (
        one.candidate == challenger["name"]
        and one.champion == turn.champion
        and one.environment == environment_of(project).digest
        and asked == then
    )


def _problems_of(evaluation: Evaluation) -> list[str] | None:
    """The problems that a turn's evaluation was made on: its id says whether these are they."""
    import json

    try:
        told = json.loads((home().runs / evaluation.run_id / "problems.json").read_text())
        ids: list[str] = told["heldout"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    same = digest(evaluation.run_id, ids, evaluation.candidate) == evaluation.id
    return ids if same else None


@step(minutes=15, keep=False)
def promote_version(
    turn: Turn, challenger: dict[str, Any], evaluation: Verdict, by: str, reason: str
) -> Verdict:
    """Runs the promotion protocol for the version, as a turn does for its candidate."""
    deployment = msgspec.convert(challenger, Deployment)
    if challenger["name"] == turn.champion:
        said = verdict("serving", True, evaluation["reason"], deployment=turn.champion)
    else:
        try:
            have_probe(turn, deployment, evaluation)
        except Refused as refusal:
            said = verdict("serving", False, str(refusal), deployment=None)
            record(turn, said, by=by, deployment=deployment.name)
        else:
            said = promoted(turn, deployment, evaluation, by=by, reason=reason)
    note(turn, "promotion", said)
    return said
