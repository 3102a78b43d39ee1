"""Judging: what both sides answered becomes an evaluation, the gate's verdict, and pairs to read.

Enter a turn (or trial) whose answers are in the store; leaves the Evaluation there, and plain data
that Prefect keeps. Texts of answers go no further than the page that shows them.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from flywheel.ids import digest
from flywheel.lineage import Evaluation
from flywheel.project import GateSection
from flywheel.records import Problem, Trace, last_answer, model_spans
from tasks.gates import Verdict, verdict
from tasks.judges import informing, judged_methods
from tasks.turns import Turn, environment_of, home, project_of

Answers = list[tuple[Trace, float | None]]
"""Answers of one side, each with its score."""
Sides = tuple[Answers, Answers]
"""The champion's and the candidate's."""
PAIRS, LONGEST = 200, 600
"""Pairs of answers on MLflow's page, and characters of each text."""


def judged(
    turn: Turn, problem_ids: list[str], challenger: dict[str, Any]
) -> tuple[Verdict, list[dict[str, Any]]]:
    """What the gate makes of the two sides' answers, and these in pairs; the evaluation is in the
    store afterwards."""
    from environments.statistics import compare
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.queries import problems

    project = project_of(turn)
    asked = {one.id: one for one in problems(home(), ids=problem_ids)}
    sides = (graded_answers(turn, "champion"), graded_answers(turn, "candidate"))
    found = compare(
        rewards(sides[0]),
        rewards(sides[1]),
        {one.id: one.slice for one in asked.values()},
        confidence=project.gate.confidence,
        slice_min_problems=project.gate.slice_min_problems,
    )
    evaluation = Evaluation(
        id=digest(turn.run_id, problem_ids, challenger["name"]),
        project=turn.project,
        run_id=turn.run_id,
        champion=turn.champion,
        candidate=challenger["name"],
        overall=found.overall,
        slices=found.slices,
        confidence=project.gate.confidence,
        champion_tokens=mean(tokens_of(trace) for trace, _ in sides[0]),
        candidate_tokens=mean(tokens_of(trace) for trace, _ in sides[1]),
        champion_latency_s=mean(seconds_of(trace) for trace, _ in sides[0]),
        candidate_latency_s=mean(seconds_of(trace) for trace, _ in sides[1]),
        ungraded=found.ungraded,
        environment=environment_of(project).digest,
        informing=moved_nothing(turn),
    )
    Inbox(home()).append([evaluation], name=f"evaluation-{turn.run_id}")
    commit(home())
    said = ruled(evaluation, project.gate, asked, problem_ids, challenger, sides)
    return said, pairs_of(asked, problem_ids, sides)


def ruled(
    evaluation: Evaluation,
    gate: GateSection,
    asked: dict[str, Problem],
    problem_ids: list[str],
    challenger: dict[str, Any],
    sides: Sides,
) -> Verdict:
    """What the gate says of an evaluation, with the numbers that pages show."""
    from environments.statistics import decide

    ruling = decide(evaluation, gate)
    silent = ", ".join(sorted(evaluation.informing))
    return verdict(
        "learning",
        ruling.passed,
        ruling.reason + (f"; judged, and of no weight: {silent}" if silent else ""),
        evaluation=evaluation.id,
        overall=msgspec.to_builtins(evaluation.overall),
        slices=[msgspec.to_builtins(one) for one in evaluation.slices],
        by_slice=by_slice(evaluation, asked, sides),
        heldout=digest("heldout", problem_ids),
        challenger=challenger,
        smoke=problem_ids[:2],
        champion_interval=interval(rewards(sides[0]), gate.confidence),
        candidate_interval=interval(rewards(sides[1]), gate.confidence),
        champion_tokens=evaluation.champion_tokens,
        candidate_tokens=evaluation.candidate_tokens,
        informing=evaluation.informing,
    )


def by_slice(
    evaluation: Evaluation, asked: dict[str, Problem], sides: Sides
) -> list[dict[str, Any]]:
    """Overall, then each slice: each side's mean reward, and its interval's ends."""
    given = [rewards(side) for side in sides]
    rows = []
    for part in (evaluation.overall, *evaluation.slices):
        whole = part is evaluation.overall
        kept = [
            {one: values for one, values in side.items() if whole or asked[one].slice == part.name}
            for side in given
        ]
        ends = [interval(side, evaluation.confidence) for side in kept]
        rows.append(
            {
                "name": part.name,
                "problems": part.problems,
                "champion": [part.champion, *ends[0]],
                "candidate": [part.candidate, *ends[1]],
            }
        )
    return rows


def pairs_of(
    asked: dict[str, Problem], problem_ids: list[str], sides: Sides
) -> list[dict[str, Any]]:
    """What the two sides answered to each problem first, old beside new, cut to a page's size."""
    first = [
        {trace.problem_id: (trace, value) for trace, value in reversed(side)} for side in sides
    ]
    rows = []
    for one in problem_ids[:PAIRS]:
        problem, row = asked[one], dict[str, Any](problem=one)
        answer = problem.answer
        said = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        row |= {
            "slice": problem.slice,
            "asked": problem.text[:LONGEST],
            "truth": said[:LONGEST],
        }
        for side, given in zip(("champion", "candidate"), first, strict=True):
            trace, value = given.get(one, (None, None))
            choice = last_answer(trace) if trace else None
            row |= {
                f"{side} answer": choice.message.text[:LONGEST] if choice else None,
                f"{side} reward": value,
            }
        rows.append(row)
    return rows


def graded_answers(turn: Turn, side: str) -> Answers:
    """(trace, score) of every evaluation answer of the turn that one side gave."""
    from environments.grading import score
    from storage.judgements import grades
    from storage.queries import traces

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


def moved_nothing(turn: Turn) -> dict[str, str]:
    """Judged rewards that entered no score of the turn, each with why."""
    from storage.judgements import grades

    environment = environment_of(project_of(turn))
    if not judged_methods(environment):
        return {}
    return informing(environment, grades(home(), run_id=turn.run_id))


def rewards(answered: Answers) -> dict[str, list[float | None]]:
    """By problem, the score of each of its answers."""
    found: dict[str, list[float | None]] = {}
    for trace, value in answered:
        found.setdefault(trace.problem_id or "", []).append(value)
    return found


def interval(
    given: dict[str, list[float | None]], confidence: float
) -> tuple[float | None, float | None]:
    """Of one side's mean reward over the problems."""
    from environments.statistics import mean_interval

    found = mean_interval((mean(values) for values in given.values()), confidence)
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
