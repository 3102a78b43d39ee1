"""How far a project's judge agrees with people: measured on answers that they reviewed.

Enter a project whose environment asks a judge, and its reviews; leave Calibrations in the store,
one for each reward and each judge that it asked. Invariant: what people said of an answer is kept
from the environment while it is judged, so that no truth of theirs tells the judge what to say.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.ids import digest
from flywheel.lineage import Calibration
from flywheel.progress import report
from flywheel.project import Project
from flywheel.records import Feedback, Grade
from flywheel.reviews import NAME
from tasks.judges import judge_of, judged_methods

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.grading import Item
    from environments.judges.judge import ModelJudge
    from environments.marks import Method

T = TypeVar("T")
BATCH = 200
"""Answers, or pairs of them, judged between two lines of progress."""
Kind = Literal["reviews", "pairs"]
LABELS: dict[Kind, tuple[str, ...]] = {
    "reviews": ("rejected", "accepted"),
    "pairs": ("worse", "equal", "better"),
}
"""From worst to best; of a pair they are the first's."""


class Seen(NamedTuple):
    """One answer, or pair, that people and the judge saw."""

    about: str
    """The trace's id, or the two."""
    people: int
    """Place of their label."""
    judge: int | None
    """None = no verdict."""


class Reviewed(NamedTuple):
    """What people said."""

    answers: dict[str, int]
    """Trace id -> label."""
    pairs: dict[tuple[str, str], int]
    """Two trace ids -> label of the first."""
    disputed: dict[Kind, int]
    """How many were left out, since as many people said one thing as the other."""


class Key(NamedTuple):
    reward: str
    judge: str
    """Digest of the judge that it asked."""
    kind: Kind


def calibrate(project: Project, home: Home, *, limit: int = 1000) -> list[Calibration]:
    """Judges at most `limit` reviewed answers, and as many pairs, and stores what came of it.

    Raises:
        UsageError: there is no judge, no reward that asks one, or nothing reviewed.
    """
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.moments import moment
    from tasks.turns import environment_of

    judge, environment = judge_of(project, home), environment_of(project)
    if judge is None or judge.ledger is None:
        raise UsageError(f"no [judge] in {project.folder / 'flywheel.toml'}: nothing to calibrate")
    if not judged_methods(environment):
        raise UsageError(f"no reward of {project.environment.path} names `judge`: it asks none")
    commit(home)
    reviewed = read(home, project.name, limit)
    if not reviewed.answers and not reviewed.pairs:
        raise UsageError(
            f"nobody has reviewed an answer of {project.name}: review some on the dashboard's "
            "Review page (`flywheel dashboard`), then calibrate"
        )
    before = judge.ledger.spent(project.name)
    found = measured(environment, judge, home, reviewed)
    after = judge.ledger.spent(project.name)
    cost = after.usd - before.usd if after.unknown == before.unknown else None
    at = moment(home)
    made = [
        calibration(
            project.name, key, seen, reviewed.disputed[key.kind], cost, at, judge.section.model
        )
        for key, seen in sorted(found.items())
    ]
    Inbox(home).append(made)
    commit(home)
    return made


def read(home: Home, project: str, limit: int) -> Reviewed:
    """What most people said of each answer and pair; where they are at odds it is left out."""
    from storage.reviews import comparisons, verdicts

    answers = {one: _most(mean, 2) for one, mean in verdicts(home, project).items()}
    pairs = {one[:2]: _most(one.better, 3) for one in comparisons(home, project)}
    known = {one: label for one, label in answers.items() if label is not None}
    clear = {pair: label for pair, label in pairs.items() if label is not None}
    return Reviewed(
        dict(list(known.items())[:limit]),
        dict(list(clear.items())[:limit]),
        {"reviews": len(answers) - len(known), "pairs": len(pairs) - len(clear)},
    )


def _most(mean: float, labels: int) -> int | None:
    """The label that people's mean is nearest to; None = it lies between two."""
    place = mean * (labels - 1)
    return None if place % 1 == 0.5 else round(place)


def measured(
    environment: "Environment", judge: "ModelJudge", home: Home, reviewed: Reviewed
) -> dict[Key, list[Seen]]:
    """What people and the judge say of the same, by reward and judge."""
    found: dict[Key, list[Seen]] = defaultdict(list)
    methods = judged_methods(environment)
    of_one = [one for one in methods if one.mark.kind in ("reward", "metric")]
    of_group = [one for one in methods if one.mark.kind == "group_reward"]
    for answers in _chunks("judging reviewed answers", list(reviewed.answers) if of_one else []):
        items = items_of(environment, judge, home, answers)
        for item, grades in zip(items, _graded(environment, items, of_one), strict=True):
            for grade in grades:
                label = None if grade.value is None else int(grade.value >= 0.5)
                seen = Seen(item.trace.id, reviewed.answers[item.trace.id], label)
                found[Key(grade.reward, _judge_in(grade), "reviews")].append(seen)
    for pairs in _chunks("judging compared pairs", list(reviewed.pairs) if of_group else []):
        ids = sorted({one for pair in pairs for one in pair})
        known = {one.trace.id: one for one in items_of(environment, judge, home, ids)}
        whole = [pair for pair in pairs if pair[0] in known and pair[1] in known]
        groups = [tuple(known[one].trace for one in pair) for pair in whole]
        items = [known[one]._replace(group=group)
                 for pair, group in zip(whole, groups, strict=True) for one in pair]  # fmt: skip
        given = _graded(environment, items, of_group)
        for number, pair in enumerate(whole):
            for first, second in zip(*given[2 * number : 2 * number + 2], strict=True):
                seen = Seen(" ".join(pair), reviewed.pairs[pair], _preferred(first, second))
                found[Key(first.reward, _judge_in(first), "pairs")].append(seen)
    return {key: seen for key, seen in found.items() if key.judge}


def items_of(
    environment: "Environment", judge: "ModelJudge", home: Home, ids: Sequence[str]
) -> list["Item"]:
    """Answers with the judge, as if nobody had reviewed them."""
    from environments.asked import posed
    from storage.judgements import feedback_for
    from storage.queries import traces

    found = [trace for batch in traces(home, ids=ids) for trace in batch]
    said = feedback_for(home, found)
    return [
        posed(environment, trace, _unreviewed(said.get(trace.id, ())))._replace(judge=judge)
        for trace in found
    ]


def _unreviewed(feedback: Sequence[Feedback]) -> list[Feedback]:
    return [one for one in feedback if one.name != NAME and not one.name.startswith("compared:")]


def _graded(
    environment: "Environment", items: list["Item"], methods: list["Method"]
) -> list[list[Grade]]:
    from environments.grading import grade_all

    return grade_all(environment, items, methods=methods)


def _chunks(step: str, all: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(all), BATCH):
        report(step, start, len(all))
        yield all[start : start + BATCH]
    if all:
        report(step, len(all), len(all))


def _judge_in(grade: Grade) -> str:
    """The digest of the judge that had a part in it; "" = none was asked."""
    return grade.grader.partition(":")[2]


def _preferred(first: Grade, second: Grade) -> int | None:
    if first.value is None or second.value is None:
        return None
    return 1 + (first.value > second.value) - (first.value < second.value)


def calibration(
    project: str,
    key: Key,
    seen: Sequence[Seen],
    disputed: int,
    cost_usd: float | None,
    at: int,
    model: str,
) -> Calibration:
    from environments.judges.agreement import agreement, confusion

    labels = LABELS[key.kind]
    table = confusion(
        [(one.people, one.judge) for one in seen if one.judge is not None], len(labels)
    )
    found = agreement(table)
    data = digest(sorted((one.about, one.people) for one in seen))
    return Calibration(
        id=digest(project, key.judge, key.reward, data),
        project=project,
        judge=key.judge,
        reward=key.reward,
        model=model,
        data=data,
        kind=key.kind,
        labels=labels,
        confusion=table,
        n=sum(map(sum, table)),
        kappa=found.kappa,
        low=found.low,
        high=found.high,
        missing=sum(one.judge is None for one in seen),
        disputed=disputed,
        cost_usd=cost_usd,
        reason=found.reason,
        at=at,
    )
