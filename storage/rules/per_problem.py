"""At most so many answers a problem, so that easy problems do not crowd out the others.

The best rewarded stay; among equals the row's hash decides, or its length, never the order in which
rows came.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from flywheel.ids import digest
from flywheel.rows import TrainingRow
from storage.rules.length import count_tokens
from storage.rules.rule import Parameters, Rule, Verdicts


class PerProblem(Parameters):
    keep: int = Field(1, ge=1)
    prefer: Literal["any", "shortest"] = "any"
    """Among equally rewarded answers: by hash, or the one of fewest tokens."""


def per_problem(rows: Sequence[TrainingRow], parameters: PerProblem) -> Verdicts:
    groups: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        # A row of no known problem belongs with those of the same prompt.
        groups[row.problem_id or digest(row.messages, row.tools)].append(place)
    verdicts: Verdicts = [None] * len(rows)
    for places in groups.values():
        for place in sorted(places, key=lambda at: _order(rows[at], at, parameters))[
            parameters.keep :
        ]:
            verdicts[place] = f"its problem has {parameters.keep} other answers already"
    return verdicts


def _order(row: TrainingRow, place: int, parameters: PerProblem) -> tuple[float, int, int]:
    reward = float("-inf") if row.reward is None else row.reward
    tokens = count_tokens(row)[1] if parameters.prefer == "shortest" else 0
    # Rows come sorted by hash, so the place is the hash's.
    return -reward, tokens, place


RULE = Rule(PerProblem, per_problem)
