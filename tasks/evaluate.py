"""Evaluate: candidate and champion answer the same held-out problems; the gate compares them."""

from typing import Any

import msgspec

from flywheel.errors import Refused
from flywheel.failpoints import failpoint
from flywheel.lineage import Deployment
from flywheel.progress import report
from tasks.gates import Verdict, record, verdict
from tasks.judging import judged
from tasks.sample import answering, answers
from tasks.step import step
from tasks.tracking import log_evaluation
from tasks.turns import Turn, engine, home, note, project_of
from tasks.verify import verify_both


def evaluate_candidate(turn: Turn, problems: dict[str, Any], candidate: dict[str, Any]) -> Verdict:
    """Both models answer, chunk by chunk; then the gate says what it makes of it. What no engine of
    ours could serve is neither registered nor asked."""
    fits = fitting_gate(turn, candidate)
    if not fits["passed"]:
        return fits
    challenger = register_candidate(turn, candidate)
    answer_both(turn, problems["heldout"], challenger)
    return learning_gate(turn, problems["heldout"], challenger, candidate["mlflow_run_id"])


def answer_both(turn: Turn, ids: list[str], challenger: dict[str, Any]) -> None:
    """Champion and challenger answer the same problems, chunk by chunk; models that judge judge
    answers to them."""
    if project_of(turn).judges:
        return verify_both(turn, ids, challenger)
    size = project_of(turn).rollouts.chunk
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
    for number, chunk in enumerate(chunks):
        report("evaluating", 2 * number, 2 * len(chunks))
        answer_heldout(turn, "champion", None, number, chunk)
        report("evaluating", 2 * number + 1, 2 * len(chunks))
        answer_heldout(turn, "candidate", challenger, number, chunk)
    report("evaluating", 2 * len(chunks), 2 * len(chunks))


@step(minutes=10, keep=False)
def fitting_gate(turn: Turn, candidate: dict[str, Any]) -> Verdict:
    """Whether the engine could serve the candidate: by its limits, and by the files alone."""
    from serving.engines.fitting import must_fit

    try:
        must_fit(engine().access, f"{turn.project}-candidate", home().path(candidate["adapter"]))
    except Refused as refusal:
        said = verdict("serving", False, str(refusal), deployment=None)
        record(turn, said)
        return said
    return verdict("serving", True, "its files fit the engine")


@step(minutes=10)
def register_candidate(turn: Turn, candidate: dict[str, Any]) -> dict[str, Any]:
    """Registers the candidate as the challenger; its version is its deployment's number."""
    from serving.registry import Registry

    deployment: Deployment = Registry(home()).register_candidate(
        project=turn.project,
        base_model=turn.start.base_model,
        adapter=candidate["adapter"],
        kind=candidate.get("kind", "adapter"),
        checkpoint_id=candidate["checkpoint_id"],
        run_id=turn.run_id,
        tags={"flywheel.parent": turn.champion, "flywheel.snapshot": turn.snapshot},
    )
    found: dict[str, Any] = msgspec.to_builtins(deployment)
    return found


@step(minutes=60)
def answer_heldout(
    turn: Turn, side: str, challenger: dict[str, Any] | None, number: int, problem_ids: list[str]
) -> dict[str, Any]:
    """One chunk of held-out problems, answered by one side, graded and committed whole."""
    deployment = answering(turn, challenger)
    found = answers(
        turn,
        problem_ids,
        deployment,
        side=side,
        name=f"evaluation-{turn.run_id}-{side}-{number}",
        origin="evaluation",
        samples=project_of(turn).gate.samples,
    )
    failpoint("turn.mid_evaluation")
    return found


@step(minutes=10)
def learning_gate(
    turn: Turn, problem_ids: list[str], challenger: dict[str, Any], mlflow_run_id: str
) -> Verdict:
    """Compares what the two sides answered, by problem, and decides."""
    said, pairs = judged(turn, problem_ids, challenger)
    record(turn, said, evaluation_id=said["evaluation"], deployment=challenger["name"])
    log_evaluation(turn, mlflow_run_id, said, pairs)
    note(turn, "evaluation", said)
    return said
