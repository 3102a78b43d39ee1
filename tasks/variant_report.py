"""A variant's begin and end: the trial that it is compared in, and one object for scripts."""

from pathlib import Path
from typing import Any

import msgspec
from prefect import task

from flywheel.lineage import Deployment
from flywheel.project import load_project
from tasks.probing import have_probe
from tasks.report import let_go, noted
from tasks.step import worth_another_try
from tasks.trial import Trial, open_trial
from tasks.turns import Turn, champion_of, run_folder


def opened(folder: str, challenger: Deployment, by: str) -> tuple[Turn, dict[str, Any], list[str]]:
    """The trial, the variant as plain data, and the problems that it is compared on."""
    plain: dict[str, Any] = msgspec.to_builtins(challenger)
    asked = Trial(folder=folder, version=str(challenger.version), promote=True, by=by)
    turn, problems = open_trial(asked, plain)
    have_probe(turn, challenger, {})
    return turn, plain, problems


@task(retries=2, retry_delay_seconds=1, retry_condition_fn=worth_another_try)
def conclude_variant(turn: Turn, challenger: dict[str, Any], refusal: str = "") -> dict[str, Any]:
    """
    Args:
        refusal: which gate said no, and why; "" = none did.
    """
    said, promotion = noted(turn, "evaluation") or {}, noted(turn, "promotion") or {}
    overall = said.get("overall") or {}
    outcome = "promoted" if promotion.get("passed") else "passed"
    if refusal:
        outcome = "waiting" if promotion.get("waiting") else "refused"
    let_go(challenger)
    return {
        "project": turn.project,
        "candidate": challenger["name"],
        "how": challenger["variant"]["how"],
        "of": challenger["variant"]["of"]["name"],
        "champion": turn.champion,
        "run_id": turn.run_id,
        "evaluation": {
            name: overall.get(name)
            for name in ("champion", "candidate", "difference", "low", "high", "problems")
        },
        "speed": said.get("speed"),
        "decision": outcome,
        "reason": refusal or promotion.get("reason") or said.get("reason"),
        "deployment": champion_of(load_project(Path(turn.folder))).name,
        "log": str(run_folder(turn)),
    }
