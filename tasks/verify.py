"""The evaluation of a model that judges: on held-out pairs of a good and a bad answer, which it has
to tell apart.

Enter a turn and its challenger; leave, for both sides, one evaluation trace a pair (what was asked
about each answer, and said) with its grade: 1 = the good answer scored higher, 0 = the bad one, 0.5
= neither. So the learning gate compares verifiers as it does all models, by problem. Beside it the
candidate's Calibration: how often its verdicts alone are right, which decides what it may do as a
judge (`environments.judges.standing`).
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flywheel.ids import digest
from flywheel.judge_section import JudgeSection
from flywheel.lineage import Deployment
from flywheel.progress import report
from flywheel.records import Choice, Grade, ModelCall, Problem, Span, Trace, say, trace_id
from flywheel.rows import GOOD, TrainingRow
from tasks.answered import SOURCES, graded
from tasks.calibrate import Key, Seen, calibration
from tasks.preferences import preferred
from tasks.sample import answering, answers, speaker
from tasks.step import step
from tasks.turns import Turn, engine, environment_of, home, project_of

if TYPE_CHECKING:
    from environments.judges.contract import Judged
    from environments.judges.learned import LearnedJudge

RANKED, RIGHT = "ranked", "right"
"""The reward of a pair, and the metric: the share of its two verdicts that are right alone."""
_A_PROBLEM = 4
"""Pairs of one problem, at most."""
_AT_ONCE = 32


class Items(NamedTuple):
    """A held-out pair."""

    problem: Problem
    number: int
    good: TrainingRow
    bad: TrainingRow


def verify_both(turn: Turn, ids: list[str], challenger: dict[str, Any]) -> None:
    """Champion and challenger judge the same held-out pairs, chunk by chunk."""
    size = project_of(turn).rollouts.chunk
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
    for number, chunk in enumerate(chunks):
        report("evaluating", 3 * number, 3 * len(chunks))
        answer_unseen(turn, number, chunk)
        for side, who in (("champion", None), ("candidate", challenger)):
            judge_pairs(turn, side, who, number, chunk)
    report("evaluating", 3 * len(chunks), 3 * len(chunks))
    keep_calibration(turn, challenger)


@step(minutes=60)
def answer_unseen(turn: Turn, number: int, ids: list[str]) -> dict[str, Any]:
    """Answers to held-out problems, to be judged; another project's are there already."""
    project = project_of(turn)
    if project.traffic != project.name or "rollouts" not in project.curate.sources:
        return {"rollouts": 0}
    return answers(
        turn, ids, speaker(turn), name=f"unseen-{turn.run_id}-{number}", origin="evaluation",
        samples=project.rollouts.samples, side="unseen",
    )  # fmt: skip


@step(minutes=60)
def judge_pairs(
    turn: Turn, side: str, challenger: dict[str, Any] | None, number: int, ids: list[str]
) -> dict[str, Any]:
    """One chunk's pairs, judged by one side and committed whole."""
    from storage.committer import commit
    from storage.inbox import Inbox

    deployment = answering(turn, challenger)
    pairs = list(held_out_pairs(turn, ids))
    judge = verifier_of(deployment)
    verdicts = asyncio.run(_judged(judge, pairs))
    records: list[Trace | Grade] = []
    for pair, (good, bad) in zip(pairs, verdicts, strict=True):
        told = trace_of(turn, side, deployment, pair, (good, bad))
        records += [told, *grades_of(told, pair, good.value, bad.value)]
    Inbox(home()).append(records, name=f"evaluation-{turn.run_id}-{side}-{number}")
    commit(home())
    return {"pairs": len(pairs), "silent": sum(one[0].value is None for one in verdicts)}


def verifier_of(deployment: Deployment) -> "LearnedJudge":
    """The deployment as a judge, at this home's engine."""
    from environments.judges.learned import LearnedJudge
    from serving.routing import served_as

    client = engine()
    section = JudgeSection(kind="verifier", url="home", model=served_as(deployment))
    return LearnedJudge(section, key=client.access.key, address=client.url + "/v1")


def held_out_pairs(turn: Turn, ids: Sequence[str]) -> Iterator[Items]:
    """Good and bad answers to each held-out problem, or good and bad steps at it, by content."""
    from storage.queries import problems, traces

    project = project_of(turn)
    known = {one.id: one for one in problems(home(), ids=ids)}
    prompts = {digest(one.messages, one.tools): one.id for one in known.values()}
    own = project.traffic == project.name
    unseen = traces(
        home(), project=project.traffic, origin=("evaluation",),
        run_id=turn.run_id if own else None, snapshot=None if own else turn.sequence,
    )  # fmt: skip
    answered = ([one for one in batch if one.attributes.get("side") not in _SIDES or not own]
                for batch in unseen)  # fmt: skip
    batches = chain(graded(turn, SOURCES["recorded"](turn)), graded(turn, answered))
    sides: dict[str, tuple[dict[str, TrainingRow], dict[str, TrainingRow]]] = {}
    for row in sorted(preferred(turn, batches), key=lambda row: (row.id, row.trace_id)):
        asked = digest(row.messages, row.tools)
        about = row.problem_id if row.problem_id in known else prompts.get(asked)
        if about is not None:
            place = sides.setdefault(about, ({}, {}))[row.label not in GOOD]
            place.setdefault(digest(row.messages, row.completion), row)
    for about in sorted(sides):
        good, bad = sides[about]
        both = zip(good.values(), bad.values(), strict=False)
        for number, (better, worse) in enumerate(islice(both, _A_PROBLEM)):
            yield Items(known[about], number, better, worse)


_SIDES = ("champion", "candidate")


async def _judged(judge: "LearnedJudge", pairs: Sequence[Items]) -> list[tuple["Judged", "Judged"]]:
    from environments.judges.asking import session

    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(row: TrainingRow) -> "Judged":
        async with turn:
            return await judge.judge(opened, row.messages, row.completion, row.tools)

    async with session() as opened:
        said = await asyncio.gather(*(one(row) for pair in pairs for row in (pair.good, pair.bad)))
    return list(zip(said[::2], said[1::2], strict=True))


def trace_of(
    turn: Turn, side: str, deployment: Deployment, pair: Items, said: tuple["Judged", "Judged"]
) -> Trace:
    """What was asked about each of the two answers, and what the verifier said."""
    from environments.judges.verifier import NO, YES, asked

    now, spans = time.time_ns(), []
    for name, row, one in zip(("good", "bad"), (pair.good, pair.bad), said, strict=True):
        verdict = "" if one.value is None else YES if one.value >= 0.5 else NO
        call = ModelCall(
            input=asked(row.messages, row.completion), tools=row.tools,
            choices=(Choice(message=say("assistant", verdict), finish_reason="stop"),),
            deployment=deployment.name,
        )  # fmt: skip
        spans.append(Span(id=name, kind="model", start=now, end=now, call=call,
                          attributes={"p": one.value, "of": row.trace_id}))  # fmt: skip
    source = f"evaluation:{turn.run_id}:{side}"
    external = f"{pair.problem.id}/{pair.number}"
    return Trace(
        id=trace_id(turn.project, source, external), project=turn.project, source=source,
        external_id=external, origin="evaluation", spans=tuple(spans), run_id=turn.run_id,
        problem_id=pair.problem.id, attempt=pair.number, attributes={"side": side},
    )  # fmt: skip


def grades_of(told: Trace, pair: Items, good: float | None, bad: float | None) -> Iterator[Grade]:
    """A verifier that gives no verdict ranks by chance: 0.5, and none of its verdicts is right."""
    ranked = 0.5 if good is None or bad is None or good == bad else float(good > bad)
    right = ((good is not None and good >= 0.5) + (bad is not None and bad < 0.5)) / 2
    for name, value, weight in ((RANKED, ranked, 1.0), (RIGHT, right, 0.0)):
        yield Grade(
            trace_id=told.id, reward=name, value=value, weight=weight, grader="verify",
            problem_id=pair.problem.id, confirmed_by=pair.good.confirmed_by,
        )  # fmt: skip


def keep_calibration(turn: Turn, challenger: dict[str, Any]) -> None:
    """How often the candidate's verdicts alone are right, in the store under its digest as a judge:
    what it may do wherever it is asked."""
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.moments import moment
    from storage.queries import traces

    judge = verifier_of(msgspec.convert(challenger, Deployment))
    own = judge.digest_of("score", "")
    seen = [
        Seen(f"{trace.id} {span.id}", int(span.id == "good"), None if p is None else int(p >= 0.5))
        for batch in traces(home(), project=turn.project, origin="evaluation", run_id=turn.run_id)
        for trace in batch
        if trace.attributes.get("side") == "candidate"
        for span in trace.spans
        for p in (span.attributes.get("p"),)
    ]
    key = Key(environment_of(project_of(turn)).name, own, "reviews")
    made = calibration(turn.project, key, seen, 0, 0.0, moment(home()), judge.section.model)
    Inbox(home()).append([made], name=f"calibration-{turn.run_id}-{challenger['name']}")
    commit(home())
