"""Rows whose reward reaches a value. What was never graded, or is no number, never passes."""

import math
from collections.abc import Sequence

from flywheel.rows import TrainingRow
from storage.rules.rule import Parameters, Rule, Verdicts


class MinReward(Parameters):
    value: float


def min_reward(rows: Sequence[TrainingRow], parameters: MinReward) -> Verdicts:
    return [_verdict(row.reward, parameters.value) for row in rows]


def _verdict(reward: float | None, value: float) -> str | None:
    if reward is None:
        return "reward unknown: nothing could grade it"
    if math.isnan(reward):
        return "reward is not a number"
    return None if reward >= value else f"reward {reward:g} is under {value:g}"


RULE = Rule(MinReward, min_reward)
