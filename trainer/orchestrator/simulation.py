"""A run of the real orchestrator in virtual time: rollouts, training and publishing only take time.

Enter the run's settings, how long each rollout lasts and what a step costs; leaves what was trained
and when, so that a rule of scheduling is measured before an engine is paid for. Everything but the
players, the learner and the publisher is what runs on real engines.
"""

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from environments.attempt import Finished
from flywheel.records import Problem, Trace, say
from flywheel.train_section import RLSection
from trainer.orchestrator.clock import run_virtually
from trainer.orchestrator.contract import (
    Attempt,
    Complete,
    Kept,
    Load,
    Played,
    Standing,
    Visit,
    facts_of,
)
from trainer.orchestrator.driver import Outcome, orchestrate
from trainer.orchestrator.scheduler import Scheduler

Durations = Callable[[int, int], float]
"""Seconds that rollout k of visit number n lasts."""

PROBLEM = Problem(environment="simulated", messages=(say("user", "?"),))
FINISHED = Finished(
    Trace(
        id="simulated", project="simulated", source="simulated", external_id="simulated",
        origin="rollout", spans=(),
    ),
    [],
)  # fmt: skip


class Costs(NamedTuple):
    train_s: float = 120.0
    publish_s: float = 5.0
    tokens_per_s: float = 20.0
    """Of one rollout."""


class Trained(NamedTuple):
    step: int
    rollouts: tuple[Played, ...]
    report: dict[str, Any]


@dataclass
class World:
    """Player, learner and publisher in one: what they would do takes its time, and no more."""

    durations: Durations
    costs: Costs = field(default_factory=Costs)
    name: str = "simulated"
    published: dict[int, float] = field(default_factory=dict)
    """Version -> when."""
    trained: list[Trained] = field(default_factory=list)
    kept: dict[str, Complete] = field(default_factory=dict)
    """Complete, and not trained yet."""
    pending: tuple[str, ...] = ()
    """The batch that is being trained."""
    consumed: set[str] = field(default_factory=set)
    dropped: dict[str, str] = field(default_factory=dict)
    """Visit -> why."""

    def visits(self) -> Iterator[Visit]:
        number = 0
        while True:
            yield Visit(f"visit-{number}", PROBLEM, "simulated", number)
            number += 1

    # --- the player

    async def play(self, attempt: Attempt, version: int) -> Played:
        loop = asyncio.get_running_loop()
        began, first = loop.time(), max(self.published, default=0)
        await asyncio.sleep(self.durations(attempt.visit.number, attempt.k))
        ended = loop.time()
        later = {one: when for one, when in self.published.items() if one > first}
        edges = [(edge - began) * self.costs.tokens_per_s for edge in (*later.values(), ended)]
        upto = [math.floor(edge) for edge in edges]
        sampled = tuple(end - start for start, end in zip([0, *upto], upto, strict=False))
        versions = (first, *later)
        return Played(attempt, FINISHED, versions, sum(sampled), began, ended, sampled)

    async def beat(self) -> bool:
        return True

    async def load(self) -> Load | None:
        return None

    # --- the learner

    async def standing(self) -> Standing:
        kept = [
            Kept(one.visit.id, one.visit.number, facts_of(one))
            for one in self.kept.values()
            if one.visit.id not in self.pending
        ]
        folder = Path("weights") if self.trained else None
        consumed = frozenset(self.consumed)
        return Standing(len(self.trained), folder, self.pending, tuple(kept), consumed)

    async def complete(self, group: Complete) -> str | None:
        self.consumed.add(group.visit.id)
        if not group.played:
            return "nothing of it ended"
        self.kept[group.visit.id] = group
        return None

    async def drop(self, visit: str, reason: str) -> None:
        del self.kept[visit]
        self.dropped[visit] = reason

    async def train(self, step: int, groups: tuple[str, ...], report: dict[str, Any]) -> Path:
        self.pending = groups
        await asyncio.sleep(self.costs.train_s)
        self.pending = ()
        rollouts = [one for name in groups for one in self.kept.pop(name).played]
        self.trained.append(Trained(step, tuple(rollouts), report))
        return Path("weights")

    def words(self) -> str:
        return ""

    # --- the publisher

    async def publish(self, version: int, folder: Path) -> None:
        await asyncio.sleep(self.costs.publish_s)
        self.published.setdefault(version, asyncio.get_running_loop().time())


def simulate(
    world: World, rl: RLSection, *, plan: Callable[[RLSection, Standing], Scheduler] = Scheduler
) -> Outcome:
    return run_virtually(orchestrate(world.visits(), rl, [world], world, world, plan=plan))


def heavy_tailed(seed: int, *, median: float = 300.0, sigma: float = 1.2) -> Durations:
    """Lognormal, between half a minute and three hours: agents' episodes."""

    def seconds(number: int, k: int) -> float:
        drawn = random.Random(f"{seed} {number} {k}").gauss(0.0, sigma)
        return min(max(median * math.exp(drawn), 30.0), 10_800.0)

    return seconds


class Measured(NamedTuple):
    """Of a whole run, from its first rollout to its last version."""

    over_limit: float
    """Time, over what it would take if no slot and no step ever waited."""
    staleness: int
    """The largest: the version trained from, less the oldest that sampled in the rollout."""
    dropped: float
    """Share of rollouts."""
    duration: float
    """Mean of what was trained, over the mean of what the visits in their order last."""
    overaged: float
    """Share of the trained rollouts' tokens beyond the bound, which are masked."""


def measured(world: World, rl: RLSection, outcome: Outcome) -> Measured:
    groups = range(rl.steps * rl.groups_per_step)
    every = [world.durations(number, k) for number in groups for k in range(rl.group_size)]
    costs = world.costs
    limit = max(sum(every) / rl.slots, rl.steps * (costs.train_s + costs.publish_s))
    rollouts = [(one.step - 1, played) for one in world.trained for played in one.rollouts]
    lasted = [played.ended - played.started for _, played in rollouts]
    late: Sequence[int] = [
        tokens
        for base, played in rollouts
        for version, tokens in zip(played.versions, played.sampled, strict=True)
        if version < base - rl.max_staleness
    ]
    return Measured(
        over_limit=world.published[rl.steps] / limit,
        staleness=max(base - played.versions[0] for base, played in rollouts),
        dropped=outcome.dropped / outcome.ended,
        duration=sum(lasted) / len(lasted) / (sum(every) / len(every)),
        overaged=sum(late) / sum(played.tokens for _, played in rollouts),
    )
