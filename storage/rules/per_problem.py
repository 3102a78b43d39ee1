"""At most so many answers a problem, so that easy problems do not crowd out the others.

The best rewarded stay; among equals the row's hash decides, or its length, never the order in which
rows came. A pair counts as one; other labelled answers are counted by label.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from flywheel.ids import digest
from flywheel.rows import TrainingRow
from storage.rules.rule import Parameters, Rule, Verdicts
from storage.tokens_of import count_tokens


class PerProblem(Parameters):
    keep: int = Field(1, ge=1)
    prefer: Literal["any", "shortest"] = "any"
    """Among equally rewarded answers: by hash, or the one of fewest tokens."""


def per_problem(rows: Sequence[TrainingRow], parameters: PerProblem) -> Verdicts:
    groups: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        # A row of no known problem belongs with those of the same prompt.
        problem = row.problem_id or digest(row.messages, row.tools)
        groups[problem, None if row.pair_id else row.label].append(place)
    verdicts: Verdicts = [None] * len(rows)
    for places in groups.values():
        stay: set[str | int] = set()
        for place in sorted(places, key=lambda at: _order(rows[at], at, parameters)):
            counted = rows[place].pair_id or place
            if counted not in stay and len(stay) == parameters.keep:
                verdicts[place] = f"its problem has {parameters.keep} other answers already"
            else:
                stay.add(counted)
    return verdicts


def _order(row: TrainingRow, place: int, parameters: PerProblem) -> tuple[float, int, int]:
    reward = float("-inf") if row.reward is None else row.reward
    tokens = count_tokens(row)[1] if parameters.prefer == "shortest" else 0
    # Rows come sorted by hash, so the place is the hash's.
    return -reward, tokens, place


RULE = Rule(PerProblem, per_problem)
