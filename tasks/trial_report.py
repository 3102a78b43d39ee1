"""A trial's end: one object for scripts, one page for people, the answer on MLflow's pages.

Enters what was asked and what its gates said; leaves it wherever it is looked for. All of it may be
done again after a kill: decisions have the ask's or the trial's name, texts are written whole.
"""

from pathlib import Path
from typing import Any

from prefect import task

from flywheel import durable
from flywheel.ids import new_ulid
from flywheel.lineage import Decision
from flywheel.plain import in_markdown
from flywheel.project import load_project
from tasks.report import let_go, noted, shown
from tasks.step import worth_another_try
from tasks.trial import Trial
from tasks.turns import Turn, champion_of, home, run_folder

NO_VERDICT = "none"
"""It was refused before a gate could look at it: what is to serve is not there, or cannot."""


@task(retries=2, retry_delay_seconds=1, retry_condition_fn=worth_another_try)
def conclude_trial(
    trial: Trial, turn: Turn | None, challenger: dict[str, Any] | None, refusal: str = ""
) -> dict[str, Any]:
    """
    Args:
        turn: None = there was nothing to compare: its files are gone, or are no adapter.
        refusal: why it went no further; "" = it did.
    """
    from prefect.artifacts import create_markdown_artifact

    from serving.registry import Registry
    from serving.registry_versions import answer
    from tasks.tracking import log_decision

    found = trial_report(trial, turn, challenger, refusal)
    if found["gate"] == NO_VERDICT:
        found["gate"] = "serving"
        refuse(trial, turn, challenger, refusal)
    page = trial_page(found)
    create_markdown_artifact(
        key=f"trial-{found['project']}", markdown=page, description=found["reason"]
    )
    if turn is not None:
        durable.write(run_folder(turn) / "trial.md", page.encode())
        if own := noted(turn, "trial"):
            log_decision(own["mlflow_run_id"], found["decision"], page, "trial.md")
    answer(Registry(home()), found["project"], found["version"], found["decision"], found["reason"])
    if challenger is not None:
        let_go(challenger)
    return found


def refuse(trial: Trial, turn: Turn | None, challenger: dict[str, Any] | None, why: str) -> None:
    """Writes a refusal that no gate has written."""
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.moments import moment

    project = load_project(Path(trial.folder)).name
    decision = Decision(
        id=new_ulid(),
        project=project,
        outcome="refused",
        gate="serving",
        reason=why,
        by=trial.by,
        at=moment(home()),
        run_id=turn.run_id if turn else None,
        deployment=challenger["name"] if challenger else f"{project}-v{trial.version}",
    )
    name = trial.ask or (turn.run_id if turn else f"{project}-v{trial.version}")
    Inbox(home()).append([decision], name=f"decision-trial-{name}-serving")
    commit(home())


def trial_report(
    trial: Trial, turn: Turn | None, challenger: dict[str, Any] | None, refusal: str
) -> dict[str, Any]:
    """The same words as a turn's report; what did not happen is None."""
    project = load_project(Path(trial.folder))
    evaluation = (noted(turn, "evaluation") if turn else None) or {}
    promotion = (noted(turn, "promotion") if turn and trial.promote else None) or {}
    overall = evaluation.get("overall") or {}
    no = next((one for one in (evaluation, promotion) if one.get("passed") is False), {})
    decision = "promoted" if trial.promote else "passed"
    if refusal or no:
        decision = "refused"
    reason = no.get("reason") or refusal or promotion.get("reason") or evaluation.get("reason")
    return {
        "project": project.name,
        "version": trial.version,
        "candidate": challenger["name"] if challenger else None,
        "run_id": turn.run_id if turn else None,
        "asked": {"by": trial.by, "reason": trial.reason, "promote": trial.promote},
        "evaluation": {
            name: overall.get(name)
            for name in ("champion", "candidate", "difference", "low", "high", "problems")
        }
        | {"taken_from": evaluation.get("taken_from")},
        "decision": decision,
        "reason": reason,
        "gate": no.get("gate")
        or (NO_VERDICT if refusal else (promotion or evaluation).get("gate")),
        "deployment": champion_of(project).name,
        "page": str(run_folder(turn) / "trial.md") if turn else None,
    }


def trial_page(found: dict[str, Any]) -> str:
    """For the Prefect artifact and MLflow's run page."""
    name = found["candidate"] or f"version {found['version']}"
    told, asked = found["evaluation"], found["asked"]
    why = f", because: {in_markdown(asked['reason'])}" if asked["reason"] else ""
    lines = [
        f"# Trial of {name}: {found['decision']}",
        "",
        in_markdown(found["reason"] or ""),
        "",
        f"Asked for by {in_markdown(asked['by'])}{why}. Serving now: **{found['deployment']}**.",
    ]
    if told["problems"]:
        lines += [
            "",
            "| problems | champion | candidate | difference | interval |",
            "|---|---|---|---|---|",
            f"| {told['problems']} | {shown(told['champion'])} | {shown(told['candidate'])} "
            f"| {shown(told['difference'])} | {shown(told['low'])} … {shown(told['high'])} |",
        ]
    if told["taken_from"]:
        lines += ["", f"By the evaluation that turn `{told['taken_from']}` made."]
    return "\n".join(lines) + "\n"
