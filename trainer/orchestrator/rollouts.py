"""From visits to graded groups: who plays what next, and what becomes of a rollout that failed.

Enter visits, as the scheduler has room for them; leave complete groups, graded, with the scheduler.
Infrastructure that fails a rollout is data: it is tried again, elsewhere where there is another
worker, and lost with its reason after that. Invariant: a run in which nothing succeeds ends with
the reason, and never spins.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environments.attempt import FAILED
from flywheel.errors import EngineError, Refused
from flywheel.progress import report
from flywheel.train_section import RLSection
from trainer.orchestrator.background import Background
from trainer.orchestrator.contract import Attempt, Complete, Learner, Lost, Played, Player, Visit
from trainer.orchestrator.crew import LOST, Crew
from trainer.orchestrator.report import Meter
from trainer.orchestrator.scheduler import Scheduler
from trainer.orchestrator.sharing import Slots

TRIES = 3
"""Of one rollout that infrastructure fails."""
BACKOFF_S = 1.0
"""Before the second try; doubled before each further one."""
TAUGHT_NOTHING = 16
"""Times the groups of a step, in a row, that cannot be trained on, until the run stops."""


class Rollouts:
    def __init__(
        self,
        source: Iterator[Visit],
        rl: RLSection,
        scheduler: Scheduler,
        learner: Learner,
        background: Background,
    ) -> None:
        self.source, self.rl, self.scheduler, self.learner = source, rl, scheduler, learner
        self.background = background
        self.meter = Meter(asyncio.get_running_loop().time())
        self.next: Visit | None = None
        self.failed = self.untaught = 0
        """Rollouts that failed, and groups that taught nothing, in a row."""
        self.resting = 0
        """Failed, and to be tried again in a moment: they hold their places until then."""

    def played_by(self, players: Sequence[Player], shared: Mapping[str, Slots], run: str) -> Crew:
        self.crew = Crew(
            players,
            shared,
            self.rl.slots,
            run,
            ended=self.ended,
            woken=self.background.changed.set,
        )
        return self.crew

    def tick(self, freed: int = 0) -> None:
        now, crew = asyncio.get_running_loop().time(), self.crew
        self.meter.tick(now, crew.playing + freed, min(crew.capacity, self.rl.slots))

    # --- starting

    def fill(self) -> None:
        """Starts what slots and permits allow."""
        while self.crew.playing + self.resting < self.rl.slots and self._work():
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

    def _work(self) -> bool:
        """Whether there is an attempt to start, or a visit to begin."""
        if self.scheduler.waiting:
            return True
        if not self.scheduler.room():
            return False
        if self.next is None:
            self.next = next(self.source, None)
            self.scheduler.exhausted = self.next is None
        return self.next is not None

    # --- ending

    def ended(self, attempt: Attempt, result: Played | BaseException) -> None:
        self.tick(freed=1)
        self.background.changed.set()
        if isinstance(result, Played):
            lost: Played | Lost = result
            again = result.finished.infrastructure
        elif isinstance(result, LOST):
            lost, again = Lost(attempt, str(result) or type(result).__name__), True
        else:
            self.background.fail(result)
            return
        if again and attempt.tries < TRIES:
            self.meter.retried += 1
            self.resting += 1
            after = BACKOFF_S * 2 ** (attempt.tries - 1)
            asyncio.get_running_loop().call_later(after, self._again, attempt)
        else:
            self._settle(attempt, lost)

    def stop(self, attempts: Sequence[Attempt], reason: str) -> None:
        """They are over; what they sampled is lost."""
        for attempt in attempts:
            self.crew.stop(attempt)
            self.meter.ended += 1
            self.meter.dropped += 1
            self._close(attempt, Lost(attempt, reason))

    def _again(self, attempt: Attempt) -> None:
        self.resting -= 1
        self.scheduler.again(attempt)
        self.background.changed.set()

    def _settle(self, attempt: Attempt, result: Played | Lost) -> None:
        """The rollout is over for good."""
        reason: Any = (
            result.reason
            if isinstance(result, Lost)
            else result.finished.trace.attributes.get(FAILED)
        )
        self.meter.ended += 1
        self.meter.dropped += isinstance(result, Lost) or result.finished.infrastructure
        self.failed = self.failed + 1 if reason is not None else 0
        if self.failed >= self.rl.max_failed:
            self.background.fail(
                EngineError(
                    f"{self.failed} rollouts in a row failed, the last ({attempt.visit.id}, "
                    f"rollout {attempt.k}): {reason}; when that is mended, the run goes on"
                )
            )
        self._close(attempt, result)

    def _close(self, attempt: Attempt, result: Played | Lost) -> None:
        complete = self.scheduler.ended(attempt, result)
        if complete is not None:
            self.background.spawn(self._grade(complete))
        self._tell()

    async def _grade(self, group: Complete) -> None:
        reason = await self.learner.complete(group)
        self.scheduler.graded(group, reason)
        self.untaught = self.untaught + 1 if reason is not None else 0
        self.meter.refused += reason is not None
        if self.untaught >= TAUGHT_NOTHING * self.rl.groups_per_step:
            raise Refused(
                f"{self.untaught} groups in a row could not be trained on, the last "
                f"({group.visit.id}) because: {reason}"
            )
        self._tell()

    def _tell(self) -> None:
        ready = f"{len(self.scheduler.ready)} of {self.rl.groups_per_step} groups ready"
        words = (f"rollouts ended: {self.meter.ended}", ready, self.learner.words())
        trained = self.scheduler.taken - self.meter.training
        report("training", trained, self.rl.steps, "; ".join(filter(None, words)))
