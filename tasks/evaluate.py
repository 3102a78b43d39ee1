"""Evaluate: candidate and champion answer the same held-out problems; the gate compares them."""

from collections.abc import Iterable
from typing import Any

import msgspec

from flywheel.failpoints import failpoint
from flywheel.ids import digest
from flywheel.lineage import Deployment, Evaluation
from flywheel.progress import report
from flywheel.records import Trace, model_spans
from tasks.gates import Verdict, record, verdict
from tasks.sample import answers
from tasks.step import step
from tasks.tracking import log_evaluation
from tasks.turns import Turn, engine, environment_of, home, note, project_of

Answers = list[tuple[Trace, float | None]]
"""Answers of one side, each with its score."""


def evaluate_candidate(turn: Turn, problems: dict[str, Any], candidate: dict[str, Any]) -> Verdict:
    """Both models answer, chunk by chunk; then the gate says what it makes of it."""
    challenger = register_candidate(turn, candidate)
    size = project_of(turn).rollouts.chunk
    ids = problems["heldout"]
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
    for number, chunk in enumerate(chunks):
        report("evaluating", 2 * number, 2 * len(chunks))
        answer_heldout(turn, "champion", None, number, chunk)
        report("evaluating", 2 * number + 1, 2 * len(chunks))
        answer_heldout(turn, "candidate", challenger, number, chunk)
    report("evaluating", 2 * len(chunks), 2 * len(chunks))
    return learning_gate(turn, ids, challenger, candidate["mlflow_run_id"])


@step(minutes=10)
def register_candidate(turn: Turn, candidate: dict[str, Any]) -> dict[str, Any]:
    """Registers the candidate as the challenger; its version is its deployment's number."""
    from serving.registry import Registry

    deployment: Deployment = Registry(home()).register_candidate(
        project=turn.project,
        base_model=turn.start.base_model,
        adapter=candidate["adapter"],
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

    deployment = turn.start
    if challenger:
        deployment = msgspec.convert(challenger, Deployment)
        engine().load_adapter(deployment.name, home().path(deployment.adapter or ""))
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
    from environments.statistics import compare, decide
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.queries import problems

    project = project_of(turn)
    sides = [graded_answers(turn, name) for name in ("champion", "candidate")]
    compared = compare(
        rewards(sides[0]),
        rewards(sides[1]),
        {one.id: one.slice for one in problems(home(), ids=problem_ids)},
        confidence=project.gate.confidence,
        slice_min_problems=project.gate.slice_min_problems,
    )
    evaluation = Evaluation(
        id=digest(turn.run_id, problem_ids, challenger["name"]),
        project=turn.project,
        run_id=turn.run_id,
        champion=turn.champion,
        candidate=challenger["name"],
        overall=compared.overall,
        slices=compared.slices,
        confidence=project.gate.confidence,
        champion_tokens=mean(tokens_of(trace) for trace, _ in sides[0]),
        candidate_tokens=mean(tokens_of(trace) for trace, _ in sides[1]),
        champion_latency_s=mean(seconds_of(trace) for trace, _ in sides[0]),
        candidate_latency_s=mean(seconds_of(trace) for trace, _ in sides[1]),
        ungraded=compared.ungraded,
        environment=environment_of(project).digest,
    )
    ruling = decide(evaluation, project.gate)
    said = verdict(
        "learning",
        ruling.passed,
        ruling.reason,
        evaluation=evaluation.id,
        overall=msgspec.to_builtins(evaluation.overall),
        slices=[msgspec.to_builtins(one) for one in evaluation.slices],
        challenger=challenger,
        smoke=problem_ids[:2],
        champion_interval=interval(sides[0], project.gate.confidence),
        candidate_interval=interval(sides[1], project.gate.confidence),
        champion_tokens=evaluation.champion_tokens,
        candidate_tokens=evaluation.candidate_tokens,
    )
    Inbox(home()).append([evaluation], name=f"evaluation-{turn.run_id}")
    commit(home())
    record(turn, said, evaluation_id=evaluation.id, deployment=challenger["name"])
    log_evaluation(mlflow_run_id, said)
    note(turn, "evaluation", said)
    return said


def graded_answers(turn: Turn, side: str) -> Answers:
    """(trace, score) of every evaluation answer of the turn that one side gave."""
    from environments.grading import score
    from storage.queries import grades, traces

    found = [
        trace
        for batch in traces(
            home(), project=turn.project, origin=("evaluation",), run_id=turn.run_id
        )
        for trace in batch
        if trace.attributes.get("side") == side
    ]
    given: dict[str, list[Any]] = {trace.id: [] for trace in found}
    for grade in grades(home(), trace_ids=list(given)):
        given[grade.trace_id].append(grade)
    return [(trace, score(given[trace.id])) for trace in found]


def rewards(answered: Answers) -> dict[str, list[float | None]]:
    """By problem, the score of each of its answers."""
    found: dict[str, list[float | None]] = {}
    for trace, value in answered:
        found.setdefault(trace.problem_id or "", []).append(value)
    return found


def interval(answered: Answers, confidence: float) -> tuple[float | None, float | None]:
    """Of one side's mean reward over the problems."""
    from environments.statistics import mean_interval

    found = mean_interval((mean(values) for values in rewards(answered).values()), confidence)
    return found.low, found.high


def mean(values: Iterable[float | None]) -> float | None:
    """Of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def tokens_of(trace: Trace) -> float | None:
    counts = [
        len(choice.tokens.completion_ids)
        for span in model_spans(trace)
        for choice in (span.call.choices if span.call else ())
        if choice.tokens
    ]
    return float(sum(counts)) if counts else None


def seconds_of(trace: Trace) -> float | None:
    """Wall seconds of the trace's model calls."""
    spans = [(span.start, span.end) for span in model_spans(trace)]
    spent = [end - start for start, end in spans if start is not None and end is not None]
    return sum(spent) / 1e9 if spent else None
