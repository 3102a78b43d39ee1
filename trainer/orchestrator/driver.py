"""The run that samples and trains at once: rollouts are played, groups graded, batches trained,
versions published, each as soon as the scheduler allows it.

Enter a source of visits, the players, a learner, a publisher; leaves the last version, published.
The loop sleeps until something happened, then starts whatever may start. The clock is the event
loop's. Invariant: what is trained and when is the scheduler's decision alone; a run that is
started again goes on from what its learner says.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flywheel.train_section import RLSection
from trainer.orchestrator.background import Background
from trainer.orchestrator.contract import Learner, Player, Publisher, Standing, Visit
from trainer.orchestrator.crew import LOST
from trainer.orchestrator.report import Report
from trainer.orchestrator.rollouts import Rollouts
from trainer.orchestrator.scheduler import Ready, Scheduler
from trainer.orchestrator.sharing import Slots

PARTING_S = 30.0
"""What still plays may take to end, when the run does."""

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Before each further try to publish a version."""


class Outcome(NamedTuple):
    version: int
    """The last one, published."""
    ended: int
    """Rollouts since the run was last started."""
    dropped: int
    """Of them, those that no step trained, for their age or for infrastructure."""
    refused: int
    """Groups that could not be trained on."""


async def orchestrate(
    source: Iterator[Visit],
    rl: RLSection,
    players: Sequence[Player],
    learner: Learner,
    publisher: Publisher,
    *,
    run: str = "run",
    shared: Mapping[str, Slots] | None = None,
    plan: Callable[[RLSection, Standing], Scheduler] = Scheduler,
) -> Outcome:
    """Plays and trains until `rl.steps` steps are trained and published, or the source ends.

    Args:
        source: from the run's first visit on, also when it goes on: those consumed are skipped.
        shared: player's name -> its engine's slots, where other runs sample from it too.
        plan: another rule than ours, to compare it.

    Raises:
        EngineError: rollouts fail in a row, or no engine answers.
        Refused: a version is not served as trained, or groups in a row taught nothing.
    """
    if not players:
        raise ValueError("nobody plays: a run needs at least one player")
    standing = await learner.standing()
    if standing.folder is not None:
        await _published(publisher, standing.trained, standing.folder)
    fresh = (visit for visit in source if visit.id not in standing.consumed)
    background, scheduler = Background(), plan(rl, standing)
    rollouts = Rollouts(fresh, rl, scheduler, learner, background)
    crew = rollouts.played_by(players, shared or {}, run)
    steps = _Steps(rollouts, publisher)
    crew.join()
    try:
        for worker in crew.workers:
            background.spawn(crew.watch(worker), lasting=True)
        steps.go_on(standing)
        while not steps.advance():
            await background.changed.wait()
            background.changed.clear()
    finally:
        crew.leave()
        await background.end()
        await crew.left(PARTING_S)
    meter = rollouts.meter
    return Outcome(scheduler.published, meter.ended, meter.dropped, meter.refused)


class _Steps:
    """One step is trained at a time; its version may still be on its way to the engines as the
    next one is trained."""

    def __init__(self, rollouts: Rollouts, publisher: Publisher) -> None:
        self.rollouts, self.publisher = rollouts, publisher
        self.rl, self.scheduler = rollouts.rl, rollouts.scheduler
        self.learner, self.meter = rollouts.learner, rollouts.meter
        self.background = rollouts.background
        self.line = asyncio.Lock()
        """Versions are published one after the other."""

    def go_on(self, standing: Standing) -> None:
        if standing.pending:
            self.meter.training = True
            step = self.scheduler.taken
            self.background.spawn(self.step(step, standing.pending, self.told(step, {})))

    def advance(self) -> bool:
        """Starts whatever may start; True = there is nothing left to do."""
        self.background.check()
        self.rollouts.tick()
        self.train()
        self.rollouts.fill()
        return self.scheduler.done and self.background.idle

    def train(self) -> None:
        scheduler = self.scheduler
        for old in scheduler.overaged():
            scheduler.drop(old)
            self.meter.dropped += len(old.rollouts)
            self.background.spawn(self.learner.drop(old.id, self.too_old(old)))
        if self.meter.training or scheduler.unpublished > 1:
            return
        batch = scheduler.batch()
        stragglers = [] if batch else scheduler.stragglers()
        self.meter.waiting = bool(stragglers)
        if batch:
            report = self.meter.report(scheduler.taken, batch, scheduler.oldest)
            self.meter.training = True
            step = scheduler.take(batch)
            groups = tuple(one.id for one in batch)
            self.background.spawn(self.step(step, groups, self.told(step, report)))
        elif self.rl.overaged == "stop":
            late = f"stopped: it would be trained more than {self.rl.max_staleness} versions late"
            self.rollouts.stop(stragglers, late)

    async def step(self, step: int, groups: tuple[str, ...], told: dict[str, Any]) -> None:
        folder = await self.learner.train(step, groups, told)
        self.rollouts.tick()
        self.meter.training = False
        self.background.spawn(self.publish(step, folder))

    async def publish(self, version: int, folder: Path) -> None:
        async with self.line:
            await _published(self.publisher, version, folder)
            self.scheduler.publish(version)

    def told(self, step: int, report: Report) -> dict[str, Any]:
        if self.rl.overaged != "mask":
            return dict(report)
        return {**report, "mask_below": float(step - 1 - self.rl.max_staleness)}

    def too_old(self, group: Ready) -> str:
        return (
            f"sampled by version {group.version}, which no step from version "
            f"{self.scheduler.taken} on may train at a bound of {self.rl.max_staleness}"
        )


async def _published(publisher: Publisher, version: int, folder: Path) -> None:
    """An engine that is being started again is waited for."""
    for pause in PAUSES_S:
        try:
            return await publisher.publish(version, folder)
        except LOST:
            await asyncio.sleep(pause)
    return await publisher.publish(version, folder)
