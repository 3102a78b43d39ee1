"""Estimate: what a version would have earned on recent production traffic, before it gets any.

Enters a version; leaves its answers to a sample of recent prompts, graded beside what was served,
and what logged routing choices say of it. Two estimates with their intervals, or "cannot tell";
nothing is promoted by them. What the version was trained on is no evidence and is left out.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flywheel.errors import UsageError
from flywheel.ids import digest
from flywheel.lineage import Deployment
from flywheel.progress import report
from flywheel.project import load_project
from flywheel.records import Problem, Trace, last_call, main_spans
from tasks.estimate_verdict import MIN_COMPARED, Estimates, estimates_of
from tasks.judges import judge_of, sampled
from tasks.judging import mean
from tasks.sample import answering, sampler_of
from tasks.step import step
from tasks.trial import Trial, fetch_version
from tasks.turns import Turn, champion_of, configuration_of, environment_of, home, project_of

if TYPE_CHECKING:
    from environments.grading import Item

CHUNK = 32
"""Conversations that are replayed, graded and stored together."""
LOOKED_AT = 20
"""Recent traces that are looked at for each one that is wanted."""


class Sample(NamedTuple):
    """Production traces that a version is asked again."""

    ids: tuple[str, ...]
    counts: dict[str, int]
    """Of the traces that were looked at, why others are not in it."""


def open_estimate(folder: str, version: str, size: int, since: int | None) -> dict[str, Any]:
    """
    Returns: {"turn": Turn, "challenger": plain data, "sample": Sample}.

    Raises:
        UsageError: there is nothing that it could be held against.
        Refused: its files are gone.
    """
    from storage.snapshots import snapshot

    project = load_project(Path(folder))
    if project.judges:
        raise UsageError(
            f"{project.name} trains a model that judges: it is shown what people said of answers, "
            "and no production prompts. `flywheel eval` compares judges"
        )
    asked = Trial(folder=folder, version=version, promote=False, by="")
    challenger, seen = fetch_version(asked), snapshot(home(), project.traffic)
    start, configuration = rival_of(challenger, champion_of(project)), configuration_of(project)
    blank = Turn(
        run_id="", project=project.name, folder=str(project.folder), start=start,
        configuration=configuration, sequence=seen.sequence, snapshot=seen.digest, looked=True,
    )  # fmt: skip
    sample = choose_sample(blank, msgspec.convert(challenger, Deployment), size, since)
    known = (start.name, start.checkpoint_id, challenger["name"], challenger["checkpoint_id"])
    run_id = digest("estimate", project.name, configuration, *known, sample.ids, seen.digest)
    turn = msgspec.structs.replace(blank, run_id=run_id, looked=False)
    return {"turn": turn, "challenger": challenger, "sample": sample}


def rival_of(challenger: dict[str, Any], champion: Deployment) -> Deployment:
    """The champion; where the version is that itself, what it replaced."""
    from serving.routing import read

    if champion.name != challenger["name"]:
        return champion
    route = read(home()).projects.get(champion.project)
    if route is None or route.previous is None:
        raise UsageError(f"{champion.name} serves, and nothing did before it: nothing to compare")
    return route.previous


# --- replay -------------------------------------------------------------------------------------


def choose_sample(turn: Turn, challenger: Deployment, size: int, since: int | None) -> Sample:
    """The most recent conversations that can be graded and were not trained on: those that the
    champion answered, and where these are too few, all."""
    from storage.served import learnt

    seen, counts = learnt(home(), challenger.run_id), Counter[str]()
    own: list[str] = []
    others: list[str] = []
    for item, score in served_scores(turn, size, since):
        counts["looked_at"] += 1
        if item.problem is None or score is None:
            counts["not_gradable"] += 1
        elif seen.saw(item.trace.id, item.problem.id, item.trace.conversation):
            counts["trained_on"] += 1
        else:
            (own if answered_by(item.trace) == turn.champion else others).append(item.trace.id)
        if len(own) >= size:
            break
    enough = len(own) >= min(size, MIN_COMPARED)
    chosen = own if enough else [*own, *others]
    return Sample(tuple(chosen[:size]), dict(counts))


def served_scores(
    turn: Turn, size: int, since: int | None
) -> "Iterator[tuple[Item, float | None]]":
    """Recent production traces, the newest first, with what the environment says of them now."""
    from storage.served import recent

    ids = recent(home(), project_of(turn).traffic, limit=LOOKED_AT * size, since=since)
    for begin in range(0, len(ids), 2 * size):
        items = items_at(turn, ids[begin : begin + 2 * size])
        given = dict(zip((one.trace.id for one in items), scores_of(turn, items), strict=True))
        yield from ((one, given[one.trace.id]) for one in items)


def items_at(turn: Turn, ids: list[str]) -> "list[Item]":
    """Traces by id, in their order, each with the problem that it poses."""
    from environments.asked import posed
    from storage.judgements import feedback_for
    from storage.queries import traces

    found = [one for batch in traces(home(), ids=ids) for one in batch]
    said, environment = feedback_for(home(), found), environment_of(project_of(turn))
    posing = {one.id: posed(environment, one, said.get(one.id, ())) for one in found}
    return [posing[one] for one in ids if one in posing]


def scores_of(turn: Turn, items: "list[Item]") -> list[float | None]:
    """Parallel to `items`; a judge is asked within its share and its budget."""
    from environments.grading import grade_all, score

    project = project_of(turn)
    ordered = sampled(items, project, judge_of(project, home()))
    given = grade_all(environment_of(project), ordered)
    scores = {one.trace.id: score(found) for one, found in zip(ordered, given, strict=True)}
    return [scores[one.trace.id] for one in items]


def answered_by(trace: Trace) -> str | None:
    call = last_call(trace)
    return call.deployment if call else None


def replay_sample(turn: Turn, challenger: dict[str, Any], ids: tuple[str, ...]) -> list[Any]:
    """One row a conversation: what was served and what the version made of it."""
    rows: list[Any] = []
    for begin in range(0, len(ids), CHUNK):
        report("replaying", begin, len(ids))
        rows += replay_chunk(turn, challenger, begin // CHUNK, list(ids[begin : begin + CHUNK]))
    report("replaying", len(ids), len(ids))
    return rows


@step(minutes=60)
def replay_chunk(
    turn: Turn, challenger: dict[str, Any], number: int, ids: list[str]
) -> list[dict[str, Any]]:
    """Asks, grades and commits one chunk whole. Numbers leave, and no texts."""
    from environments.replaying import Asker, replay
    from storage.committer import commit
    from storage.inbox import Inbox

    sampler = sampler_of(answering(turn, challenger))
    items = items_at(turn, ids)
    pairs = [(one.trace, one.problem) for one in items if one.problem is not None]
    asker = Asker(sampler, turn.run_id, project_of(turn).rollouts.max_tokens)
    done = replay(pairs, asker)
    mine = [one._replace(trace=found.trace) for one, found in zip(items, done, strict=True)]
    served, ours = scores_of(turn, items), scores_of(turn, mine)
    problems = [problem for _, problem in pairs]
    Inbox(home()).append(
        [*problems, *(one.trace for one in done)], name=f"replay-{turn.run_id}-{number}"
    )
    commit(home())
    return [
        _row(problem, found.ended, trace, found.trace, values)
        for (trace, problem), found, values in zip(
            pairs, done, zip(served, ours, strict=True), strict=True
        )
    ]


def _row(
    problem: Problem, ended: str, trace: Trace, ours: Trace,
    scores: tuple[float | None, float | None],
) -> dict[str, Any]:  # fmt: skip
    return {
        "trace": trace.id,
        "replay": ours.id,
        "slice": problem.slice,
        "by": answered_by(trace),
        "ended": ended,
        "served": scores[0],
        "candidate": scores[1],
        "served_tokens": written(trace),
        "candidate_tokens": written(ours),
    }


def written(trace: Trace) -> int | None:
    """Tokens of all its answers; None = not known of each."""
    counts = [one.call.usage.output_tokens for one in main_spans(trace) if one.call]
    known = [one for one in counts if one is not None]
    return sum(known) if known and len(known) == len(counts) else None


# --- together -----------------------------------------------------------------------------------


def estimated(
    turn: Turn, challenger: dict[str, Any], sample: Sample, rows: list[Any], logged: dict[str, Any]
) -> Estimates:
    return estimates_of(
        candidate=challenger["name"],
        champion=turn.champion,
        rows=rows,
        looked_at=sample.counts,
        logged=logged,
        gate=project_of(turn).gate,
        tokens=(mean(one["served_tokens"] for one in rows),
                mean(one["candidate_tokens"] for one in rows)),
    )  # fmt: skip
