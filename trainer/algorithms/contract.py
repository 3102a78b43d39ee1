"""What an algorithm is: graded rollouts, or a dataset's rows, become Samples. The loop knows none.

A Group is all rollouts of one problem at one visit. An algorithm reads it with a Context and says
of whatever it leaves out why.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from flywheel.records import Problem, Record, Trace
from flywheel.rows import TrainingRow
from flywheel.train_section import TrainSection
from trainer.paths import Path
from trainer.render import Rendering
from trainer.samples import Sample

Pair = tuple[Sequence[int], Sequence[int]]
"""Prompt ids and completion ids."""
Scorer = Callable[[Sequence[Pair]], list[list[float]]]
"""A model's logprob of each completion token, at temperature 1, pair by pair."""


class Rollout(Record, frozen=True, kw_only=True):
    trace: Trace
    paths: tuple[Path, ...]
    """Of the trace; () = nothing of it can be trained on."""
    reward: float | None
    """The weighted mean of its rewards. None = it could not be given."""
    reason: str | None = None
    """Why the reward is None."""
    values: dict[str, float | None] = msgspec.field(default_factory=dict)
    """Model span -> value of the tokens that it sampled (`environments.vector.token_values`);
    None = not to be trained on. {} = process rewards are not in use: the reward is every token's.
    """


class Group(Record, frozen=True, kw_only=True):
    id: str
    """Of one visit to the problem."""
    problem: Problem
    environment: str
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True)
class Prepared:
    samples: tuple[Sample, ...]
    refused: tuple[tuple[str, str], ...]
    """(row, rollout or group id, reason)"""
    counts: dict[str, int] = field(default_factory=dict)
    """What was left out for a reason that is no fault, as `zero_advantage_groups`."""


class Context(NamedTuple):
    rendering: Rendering
    settings: TrainSection
    teacher: Scorer | None = None
    """None = the algorithm asks no teacher."""


FromRows = Callable[[list[TrainingRow], Context], Prepared]
FromGroups = Callable[[Sequence[Group], Context], Prepared]


class Algorithm(NamedTuple):
    rows: FromRows | None = None
    """Trains on a dataset. None = it cannot."""
    groups: FromGroups | None = None
    """Samples while it trains. None = it does not."""

    @property
    def online(self) -> bool:
        return self.groups is not None
