"""Preferences: which answers people, systems and rewards hold for good ones, as labelled rows.

Enter a turn's answers, graded; leave rows with labels: pairs of a better and a worse answer to one
prompt, single answers, or single steps. What is said of an answer counts in this order: reviews,
yes-or-no feedback, the environment's rewards. Invariant: where they who were asked are at odds, the
answer has no label.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from flywheel.curate_section import CurateSection
from flywheel.ids import digest
from flywheel.records import Feedback, ModelCall, Span, main_spans, model_spans, say
from flywheel.reviews import STANDING, verdict_of
from flywheel.rows import GOOD, Label, TrainingRow
from tasks.answered import Answered, call_row, graded, row_of
from tasks.stated import stated
from tasks.turns import Turn, environment_of, home, project_of

Batches = Iterable[list[Answered]]
Pair = tuple[TrainingRow, TrainingRow]
"""The better answer, the worse one."""


class Heard(NamedTuple):
    """An answer, and what it should have been."""

    row: TrainingRow
    """Its label: desirable, undesirable, or None = not known, or they are at odds."""
    shown: TrainingRow | None
    """The answer that somebody gives instead. None = nobody does."""
    pairs: tuple[Pair, ...] = ()
    """That came as such."""

    @property
    def says(self) -> bool:
        """Whether anything can be learnt from it: what nobody spoke of is not kept in memory."""
        return self.row.label is not None or self.shown is not None or bool(self.pairs)


def preferred(turn: Turn, batches: Batches) -> list[TrainingRow]:
    """The rows that the project's algorithm learns from."""
    algorithm = project_of(turn).train.algorithm
    if algorithm == "process_reward":
        return list(steps(turn, batches))
    heard = [one for batch in batches for one in hear(turn, batch) if one.says]
    given = [*(pair for one in heard for pair in one.pairs), *compared(turn), *stated(turn)]
    if algorithm == "dpo":
        return [row for pair in [*given, *paired(heard)] for row in joined(*pair)]
    return agreed([*(row for one in heard for row in labelled(one)), *unpaired(given)])


# --- single answers ------------------------------------------------------------------------------


def hear(turn: Turn, batch: Sequence[Answered]) -> Iterator[Heard]:
    """The answers of a batch with what was said of them."""
    from storage.judgements import feedback_for

    project = project_of(turn)
    section, asked = project.curate, [one.trace for one in batch]
    feedback = feedback_for(home(), asked, snapshot=turn.sequence, labels=project.labels)
    for one in batch:
        row, said = row_of(turn, one), feedback.get(one.trace.id, [])
        if row is None:
            continue
        if pair := imported(turn, one):
            yield Heard(row, None, (pair,))
        else:
            yield Heard(ruled(row, said, section), shown(turn, one, row, said))


def ruled(row: TrainingRow, said: Sequence[Feedback], section: CurateSection) -> TrainingRow:
    """The row with the label that it earned, and by what."""
    verdicts = {verdict == "accepted" for one in said if (verdict := verdict_of(one)) in STANDING}
    told = {
        one.value is True
        for one in said
        if one.kind == "boolean" and "review" not in one.attributes
    }
    for found, by in ((verdicts, "human"), (told, "feedback")):
        if found:
            return _label(row, found == {True}, by) if len(found) == 1 else row
    reward = row.reward
    if reward is None or section.bad < reward < section.good:
        return row
    return _label(row, reward >= section.good, row.confirmed_by)


def _label(row: TrainingRow, good: bool, by: str | None) -> TrainingRow:
    label: Label = "desirable" if good else "undesirable"
    return msgspec.structs.replace(row, label=label, confirmed_by=by)


def shown(
    turn: Turn, answered: Answered, row: TrainingRow, said: Sequence[Feedback]
) -> TrainingRow | None:
    """What a reviewer wrote instead, else the answer that the problem is known to have."""
    texts = {
        one.value if isinstance(one.value, str) else json.dumps(one.value, ensure_ascii=False)
        for one in said
        if verdict_of(one) == "corrected" and one.kind == "demonstration"
    }
    by: str | None = "human"
    problem = answered.problem
    if not texts and problem is not None and problem.truth_from is not None:
        gold = environment_of(project_of(turn)).gold(problem)
        texts, by = {gold} if isinstance(gold, str) else set(), problem.truth_from
    if len(texts) != 1:
        return None
    written = msgspec.structs.replace(
        row, completion=say("assistant", texts.pop()), tokens=None, finish_reason=None,
        origin="demonstration", fidelity="renderable", reward=None, answered_by=None,
        corrected=by == "human", signals=(),
    )  # fmt: skip
    return _label(written, True, by)


def labelled(one: Heard) -> Iterator[TrainingRow]:
    if one.row.label is not None:
        yield one.row
    if one.shown is not None:
        yield one.shown


def unpaired(pairs: Iterable[Pair]) -> Iterator[TrainingRow]:
    for better, worse in pairs:
        yield _label(better, True, better.confirmed_by)
        yield _label(worse, False, worse.confirmed_by)


def agreed(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Without answers that are good to one and bad to another."""
    labels: dict[str, set[str | None]] = {}
    for row in rows:
        labels.setdefault(_said(row), set()).add(row.label)
    return [row for row in rows if len(labels[_said(row)]) == 1]


# --- pairs ---------------------------------------------------------------------------------------


def paired(heard: Sequence[Heard]) -> Iterator[Pair]:
    """Good with bad answers to the same prompt, each once: first those that were given, then those
    that people show. By content, so that the order in which answers came decides nothing."""
    prompts: dict[str, tuple[dict[str, TrainingRow], dict[str, TrainingRow]]] = {}
    for rows in ([one.row for one in heard], [one.shown for one in heard]):
        for row in sorted(filter(None, rows), key=lambda row: (row.id, row.trace_id)):
            if row.label is not None:
                sides = prompts.setdefault(digest(row.messages, row.tools), ({}, {}))
                sides[row.label not in GOOD].setdefault(_said(row), row)
    for good, bad in prompts.values():
        either = good.keys() & bad.keys()
        better = [row for said, row in good.items() if said not in either]
        worse = [row for said, row in bad.items() if said not in either]
        yield from zip(better, worse, strict=False)


def compared(turn: Turn) -> Iterator[Pair]:
    """Answers that people held side by side, where most found one the better."""
    from storage.queries import traces
    from storage.reviews import comparisons

    found = comparisons(home(), project_of(turn).traffic, until=turn.sequence)
    ids = sorted({one for pair in found for one in pair[:2]})
    batches = graded(turn, traces(home(), ids=ids, snapshot=turn.sequence))
    rows = {one.trace.id: row_of(turn, one) for batch in batches for one in batch}
    for pair in found:
        first, second = rows.get(pair.first), rows.get(pair.second)
        if first is None or second is None or pair.better == 0.5:
            continue
        better, worse = (first, second) if pair.better > 0.5 else (second, first)
        yield _by("human", better, worse)


def imported(turn: Turn, answered: Answered) -> Pair | None:
    """A preference pair of a file (`storage.formats.preference`); None = it is none."""
    calls = main_spans(answered.trace)
    for span in calls:
        sides, call = span.attributes.get("preference"), span.call
        if isinstance(sides, dict) and call is not None:
            return _of_one(turn, answered, span, call, sides)
    ends = {span.attributes.get("preference"): span for span in calls}
    if not {"chosen", "rejected"} <= ends.keys():
        return None
    rows = [call_row(turn, answered, ends[side], None) for side in ("chosen", "rejected")]
    return _by("feedback", rows[0], rows[1]) if rows[0] and rows[1] else None


def _of_one(
    turn: Turn, answered: Answered, span: Span, call: ModelCall, sides: dict[str, int]
) -> Pair | None:
    row = call_row(turn, answered, span, None)
    if row is None or len(call.choices) <= max(sides.values()):
        return None
    better, worse = (
        msgspec.structs.replace(
            row,
            completion=call.choices[at].message,
            tokens=call.choices[at].tokens,
            finish_reason=call.choices[at].finish_reason,
        )
        for at in (sides["chosen"], sides["rejected"])
    )
    return _by("feedback", better, worse)


def _by(who: str, better: TrainingRow, worse: TrainingRow) -> Pair:
    one, other = (msgspec.structs.replace(row, confirmed_by=who) for row in (better, worse))
    return one, other


def joined(better: TrainingRow, worse: TrainingRow) -> Pair:
    """The two as rows of one pair."""
    plain = [msgspec.structs.replace(row, label=None) for row in (better, worse)]
    pair_id = digest("pair", *(row.id for row in plain))
    return (
        msgspec.structs.replace(plain[0], label="chosen", pair_id=pair_id),
        msgspec.structs.replace(plain[1], label="rejected", pair_id=pair_id),
    )


def _said(row: TrainingRow) -> str:
    return digest(row.messages, row.tools, row.completion)


# --- steps ---------------------------------------------------------------------------------------


def steps(turn: Turn, batches: Batches) -> Iterator[TrainingRow]:
    """A row for each model call that process rewards speak of; their value is its reward."""
    from environments.vector import token_values

    section = project_of(turn).curate
    for batch in batches:
        for one in batch:
            given = [grade for grade in one.grades if grade.span_id is not None]
            values = token_values(one.trace, given) if given else {}
            for span in model_spans(one.trace):
                value = values.get(span.id)
                row = None if value is None else call_row(turn, one, span, value)
                if row is not None:
                    yield ruled(row, (), section)
