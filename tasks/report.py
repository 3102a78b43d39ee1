"""The turn's report: one object for scripts, one page for people."""

import contextlib
import json
from typing import Any

import msgspec
from prefect import task

from flywheel import durable
from flywheel.lineage import Deployment
from flywheel.plain import in_markdown
from tasks.events import turn_ended
from tasks.gates import record, verdict
from tasks.step import worth_another_try
from tasks.turns import Turn, close_turn, home, note, project_of, run_folder


def turn_report(turn: Turn) -> dict[str, Any]:
    """What a turn did, from the notes its steps left; what did not happen is None."""
    said = {name: noted(turn, name) for name in STEPS}
    evaluation = said["evaluation"] or {}
    overall = evaluation.get("overall") or {}
    refusing = next((one for one in said.values() if one and one.get("passed") is False), None)
    promotion = said["promotion"] or {}
    training, dataset = said["training"] or {}, said["dataset"] or {}
    ingest = said["ingest"] or {}
    return {
        "project": turn.project,
        "run_id": turn.run_id,
        "traces": {name: ingest.get(key) for name, key in COUNTS.items()},
        "graded": (said["grade"] or {}).get("graded"),
        "dataset": {"id": dataset.get("dataset"), "rows": dataset.get("rows")},
        "run": {
            "id": turn.run_id,
            "algorithm": training.get("algorithm") or project_of(turn).train.algorithm,
            "seconds": training.get("seconds"),
        },
        "evaluation": {
            name: overall.get(name)
            for name in ("champion", "candidate", "difference", "low", "high", "problems")
        }
        | {
            name: evaluation.get(name)
            for name in (
                "champion_interval",
                "candidate_interval",
                "champion_tokens",
                "candidate_tokens",
            )
        },
        "decision": "promoted" if promotion.get("passed") else "refused",
        "canary": promotion.get("gate") == "canary" and promotion.get("deployment") is not None,
        "reason": (refusing or promotion).get("reason"),
        "gate": (refusing or promotion).get("gate"),
        "waiting": bool(promotion.get("waiting")),
        "deployment": serving_now(turn),
        "repeated": turn.repeated,
        "page": str(run_folder(turn) / "turn.md"),
        "steps": seconds_by_step(turn),
    }


def serving_now(turn: Turn) -> str:
    """The deployment that answers, by the routing file."""
    from serving.routing import read

    route = read(home()).projects.get(turn.project)
    return route.champion.name if route else turn.champion


def seconds_by_step(turn: Turn) -> dict[str, float]:
    """Wall seconds spent in each step, over all attempts of this turn."""
    spent: dict[str, float] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in (run_folder(turn) / "steps.jsonl").read_text().splitlines():
            one = json.loads(line)
            spent[one["step"]] = round(spent.get(one["step"], 0.0) + one["seconds"], 3)
    return spent


STEPS = (
    "ingest",
    "grade",
    "problems",
    "rollouts",
    "dataset",
    "training",
    "evaluation",
    "promotion",
)
COUNTS = {"ingested": "traces", "duplicates": "duplicates", "quarantined": "quarantined"}


def noted(turn: Turn, name: str) -> Any:
    try:
        return json.loads((run_folder(turn) / f"{name}.json").read_text())
    except FileNotFoundError:
        return None


@task(retries=2, retry_delay_seconds=1, retry_condition_fn=worth_another_try)
def conclude(turn: Turn, refusal: str = "") -> dict[str, Any]:
    """Leaves the turn's page where people look (Prefect, MLflow) and closes it.

    Args:
        refusal: why it went no further; "" = it did. One that no gate has written is written here:
            the engine would not load the candidate.
    """
    from prefect.artifacts import create_markdown_artifact

    from tasks.tracking import log_decision

    if refusal and turn_report(turn)["gate"] is None:
        said = verdict("serving", False, refusal, deployment=None)
        record(turn, said)
        note(turn, "promotion", said)
    report, page = turn_report(turn), turn_page(turn)
    create_markdown_artifact(
        key=f"turn-{turn.project}", markdown=page, description=report["reason"]
    )
    durable.write(run_folder(turn) / "turn.md", page.encode())
    training = noted(turn, "training")
    if training:
        outcome = "waiting" if report["waiting"] else report["decision"]
        log_decision(training["mlflow_run_id"], outcome, page)
    challenger = (noted(turn, "evaluation") or {}).get("challenger")
    if challenger:
        let_go(challenger)
    turn_ended(turn)
    close_turn(turn)
    return report


def let_go(challenger: dict[str, Any]) -> None:
    """The candidate has its verdict: where it does not serve, the engine forgets it and it bears
    no alias; what MLflow's pages say of the model follows."""
    from serving.engines.client import EngineClient
    from serving.presence import running
    from serving.reconcile import unload
    from serving.registry import Registry
    from serving.registry_pages import write_pages
    from serving.registry_versions import put_back

    deployment = msgspec.convert(challenger, Deployment)
    server, registry = running(home()), Registry(home())
    if server is not None:
        with EngineClient(server.engine_url, access=server.access) as engine:
            unload(home(), deployment, engine)
    put_back(registry, deployment.project, str(deployment.registry_version))
    write_pages(home(), registry, deployment.project)


def turn_page(turn: Turn) -> str:
    """The turn as Markdown, for the Prefect artifact and MLflow's run page."""
    found = turn_report(turn)
    decision = "waiting for a person" if found["waiting"] else found["decision"]
    if found["gate"] == "canary" and found["waiting"]:
        decision = "in its canary" if found["canary"] else "waiting for another canary's end"
    lines = [
        f"# {turn.project}: {decision}",
        "",
        in_markdown(found["reason"] or ""),
        "",
        f"Serving now: **{found['deployment']}** (the turn started from {turn.champion}).",
        "",
        "| held-out | problems | champion | candidate | difference | interval |",
        "|---|---|---|---|---|---|",
    ]
    evaluation = noted(turn, "evaluation") or {}
    for row in [evaluation.get("overall"), *evaluation.get("slices", [])]:
        if row:
            lines.append(
                f"| {in_markdown(row['name'])} | {row['problems']} | {shown(row['champion'])} "
                f"| {shown(row['candidate'])} | {shown(row['difference'])} "
                f"| {shown(row['low'])} … {shown(row['high'])} |"
            )
    for warning in (noted(turn, "dataset") or {}).get("warnings", []):
        lines += ["", f"The data gate warns: {in_markdown(warning)}"]
    lines += ["", "| rule | in | out |", "|---|---|---|"]
    for rule in (noted(turn, "dataset") or {}).get("rules", []):
        lines.append(f"| {rule['rule']} | {rule['rows_in']} | {rule['rows_out']} |")
    lines += ["", f"Run `{turn.run_id}`; chain: `flywheel lineage {found['deployment']}`"]
    return "\n".join(lines) + "\n"


def shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
