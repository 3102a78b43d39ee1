"""The run that samples and trains at once: rollouts are played, groups graded, batches trained,
versions published, each as soon as the scheduler allows it.

Enter a source of visits, the players, a learner, a publisher; leaves the last version, published.
The loop sleeps until something happened, then starts whatever may start. The clock is the event
loop's. Invariant: what is trained and when is the scheduler's decision alone; a run that is
started again goes on from what its learner says.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from environments.attempt import FAILED
from flywheel.errors import EngineError, Refused
from flywheel.project import RLSection
from trainer.orchestrator.contract import (
    Attempt,
    Complete,
    Learner,
    Lost,
    Played,
    Player,
    Publisher,
    Standing,
    Visit,
)
from trainer.orchestrator.crew import LOST, Crew
from trainer.orchestrator.report import Meter, Report
from trainer.orchestrator.scheduler import Ready, Scheduler
from trainer.orchestrator.sharing import Slots

TRIES = 3
"""Of one rollout that infrastructure fails, and of publishing one version."""
BACKOFF_S = 1.0
"""Before the second try; doubled before each further one."""
TAUGHT_NOTHING = 16
"""Times the groups of a step, in a row, that cannot be trained on, until the run stops."""
PARTING_S = 30.0
"""What still plays may take to end, when the run does."""


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
    driver = _Driver(fresh, rl, learner, publisher, plan(rl, standing))
    crew = Crew(players, shared or {}, rl.slots, run, ended=driver.ended, woken=driver.changed.set)
    return await driver.go(crew, standing)


class _Driver:
    def __init__(
        self,
        source: Iterator[Visit],
        rl: RLSection,
        learner: Learner,
        publisher: Publisher,
        scheduler: Scheduler,
    ) -> None:
        self.source, self.rl = source, rl
        self.learner, self.publisher, self.scheduler = learner, publisher, scheduler
        self.changed = asyncio.Event()
        self.meter = Meter(asyncio.get_running_loop().time())
        self.next: Visit | None = None
        self.failed = self.untaught = 0
        """Rollouts that failed, and groups that taught nothing, in a row."""
        self.fault: BaseException | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.line = asyncio.Lock()
        """Versions are published one after the other."""

    async def go(self, crew: Crew, standing: Standing) -> Outcome:
        self.crew = crew
        crew.join()
        try:
            self.watches = [self.spawn(crew.watch(worker)) for worker in crew.workers]
            if standing.pending:
                self.meter.training = True
                self.spawn(self.step(self.scheduler.taken, standing.pending, {}))
            while not self.over():
                await self.changed.wait()
                self.changed.clear()
        finally:
            await self.part()
        meter = self.meter
        return Outcome(self.scheduler.published, meter.ended, meter.dropped, meter.refused)

    def over(self) -> bool:
        """Starts whatever may start; True = there is nothing left to do."""
        if self.fault is not None:
            raise self.fault
        self.tick()
        self.train()
        self.fill()
        return self.scheduler.done and len(self.tasks) == len(self.watches)

    # --- rollouts

    def fill(self) -> None:
        while self.crew.playing < self.rl.slots and self.work():
            worker = self.crew.seat()
            if worker is None:
                self.crew.want(True)
                return
            if not self.scheduler.waiting and self.next is not None:
                self.scheduler.begin(self.next)
                self.next = None
            attempt = self.scheduler.due()
            assert attempt is not None
            self.crew.start(worker, attempt, self.scheduler.published)
        self.crew.want(False)

    def work(self) -> bool:
        """Whether there is an attempt to start, or a visit to begin."""
        if self.scheduler.waiting:
            return True
        if not self.scheduler.room():
            return False
        if self.next is None:
            self.next = next(self.source, None)
            self.scheduler.exhausted = self.next is None
        return self.next is not None

    def ended(self, attempt: Attempt, result: Played | BaseException) -> None:
        self.tick(freed=1)
        self.changed.set()
        if isinstance(result, Played):
            if not result.finished.infrastructure:
                self.settled(attempt, result)
                return
            reason = str(result.finished.trace.attributes[FAILED])
        elif isinstance(result, LOST):
            reason = str(result) or type(result).__name__
        else:
            self.fault = self.fault or result
            return
        if attempt.tries < TRIES:
            self.meter.retried += 1
            after = BACKOFF_S * 2 ** (attempt.tries - 1)
            asyncio.get_running_loop().call_later(after, self.again, attempt)
        else:
            self.settled(attempt, result if isinstance(result, Played) else Lost(attempt, reason))

    def again(self, attempt: Attempt) -> None:
        self.scheduler.again(attempt)
        self.changed.set()

    def settled(self, attempt: Attempt, result: Played | Lost) -> None:
        """The rollout is over for good."""
        self.meter.ended += 1
        reason: Any = result.reason if isinstance(result, Lost) else None
        if isinstance(result, Played):
            reason = result.finished.trace.attributes.get(FAILED)
        self.meter.dropped += isinstance(result, Lost) or result.finished.infrastructure
        self.failed = self.failed + 1 if reason is not None else 0
        if self.failed >= self.rl.max_failed:
            self.fault = self.fault or EngineError(
                f"{self.failed} rollouts in a row failed, the last ({attempt.visit.id}, "
                f"rollout {attempt.k}): {reason}"
            )
        self.close(attempt, result)

    def close(self, attempt: Attempt, result: Played | Lost) -> None:
        complete = self.scheduler.ended(attempt, result)
        if complete is not None:
            self.spawn(self.grade(complete))

    async def grade(self, group: Complete) -> None:
        reason = await self.learner.complete(group)
        self.scheduler.graded(group, reason)
        self.untaught = self.untaught + 1 if reason is not None else 0
        self.meter.refused += reason is not None
        if self.untaught >= TAUGHT_NOTHING * self.rl.groups_per_step:
            raise Refused(
                f"{self.untaught} groups in a row could not be trained on, the last "
                f"({group.visit.id}) because: {reason}"
            )

    # --- steps

    def train(self) -> None:
        """One step at a time; its version may still be on its way to the engines as the next one
        is trained."""
        scheduler = self.scheduler
        for old in scheduler.overaged():
            scheduler.drop(old)
            self.meter.dropped += len(old.rollouts)
            self.spawn(self.learner.drop(old.id, self.too_old(old)))
        if self.meter.training or scheduler.unpublished > 1:
            return
        batch = scheduler.batch()
        stragglers = [] if batch else scheduler.stragglers()
        self.meter.waiting = bool(stragglers)
        if batch:
            report = self.meter.report(scheduler.taken, batch, scheduler.oldest)
            self.meter.training = True
            step = scheduler.take(batch)
            self.spawn(self.step(step, tuple(one.id for one in batch), report))
        elif self.rl.overaged == "stop":
            self.stop(stragglers)

    def stop(self, attempts: Sequence[Attempt]) -> None:
        why = f"stopped: it would be trained more than {self.rl.max_staleness} versions late"
        for attempt in attempts:
            self.crew.stop(attempt)
            self.meter.ended += 1
            self.meter.dropped += 1
            self.close(attempt, Lost(attempt, why))

    def too_old(self, group: Ready) -> str:
        return (
            f"sampled by version {group.version}, which no step from version "
            f"{self.scheduler.taken} on may train at a bound of {self.rl.max_staleness}"
        )

    async def step(self, step: int, groups: tuple[str, ...], report: Report) -> None:
        told: dict[str, Any] = dict(report)
        if self.rl.overaged == "mask":
            told["mask_below"] = float(step - 1 - self.rl.max_staleness)
        folder = await self.learner.train(step, groups, told)
        self.tick()
        self.meter.training = False
        self.spawn(self.publish(step, folder))

    async def publish(self, version: int, folder: Path) -> None:
        async with self.line:
            await _published(self.publisher, version, folder)
            self.scheduler.publish(version)

    # --- what all share

    def tick(self, freed: int = 0) -> None:
        now, crew = asyncio.get_running_loop().time(), self.crew
        self.meter.tick(now, crew.playing + freed, min(crew.capacity, self.rl.slots))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.gone)
        return task

    def gone(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fault = self.fault or task.exception()
        self.changed.set()

    async def part(self) -> None:
        """Nothing of the run goes on."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.crew.leave(PARTING_S)


async def _published(publisher: Publisher, version: int, folder: Path) -> None:
    for number in range(1, TRIES + 1):
        try:
            return await publisher.publish(version, folder)
        except LOST:
            if number == TRIES:
                raise
        await asyncio.sleep(BACKOFF_S * 2 ** (number - 1))
