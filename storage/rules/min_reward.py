"""Rows whose reward reaches a value. What was never graded, or is no number, never passes."""

import math
from typing import TYPE_CHECKING

from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl


class MinReward(Parameters):
    value: float


def min_reward(frame: "pl.DataFrame", parameters: MinReward, _: Known) -> "pl.Series":
    import polars as pl

    rewards = frame["reward"].to_list()
    return pl.Series([_verdict(reward, parameters.value) for reward in rewards], dtype=pl.String)


def _verdict(reward: float | None, value: float) -> str | None:
    if reward is None:
        return "reward unknown: nothing could grade it"
    if math.isnan(reward):
        return "reward is not a number"
    return None if reward >= value else f"reward {reward:g} is under {value:g}"


RULE = Rule(MinReward, min_reward)
