"""Of rows with the same prompt and the same answer, one; of labelled ones one a label and pair.

Copies arrive under other ids (a re-export, a second source, a second sample), so content decides.
The copy that is worth most stays: with tokens, confirmed, graded, rewarded highest.
"""

from collections.abc import Sequence

from flywheel.ids import digest
from flywheel.rows import TrainingRow
from storage.rules.rule import Parameters, Rule, Verdicts


class ExactDuplicates(Parameters):
    pass


def exact_duplicates(rows: Sequence[TrainingRow], parameters: ExactDuplicates) -> Verdicts:
    contents = [
        digest(row.messages, row.completion, row.tools, row.label, row.pair_id) for row in rows
    ]
    kept: dict[str, int] = {}
    for place, content in enumerate(contents):
        best = kept.setdefault(content, place)
        if _worth(rows[place]) > _worth(rows[best]):
            kept[content] = place
    return [
        None
        if kept[content] == place
        else f"same prompt and answer as trace {rows[kept[content]].trace_id}"
        for place, content in enumerate(contents)
    ]


def _worth(row: TrainingRow) -> tuple[bool, bool, float]:
    reward = float("-inf") if row.reward is None else row.reward
    return row.tokens is not None, row.confirmed_by is not None, reward


RULE = Rule(ExactDuplicates, exact_duplicates)
