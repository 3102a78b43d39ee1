"""Who plays a run's rollouts: environments' harnesses, recorded before one engine.

Enter: attempts at problems. Leave: each as it was played, with the versions that sampled it.
Implements `trainer.orchestrator.contract.Player`. Invariant: ids and seeds derive from the run, the
visit and k, and from no clock, so that an attempt that is played again is the same one.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flywheel.episodes import Forced, Ticket
from flywheel.errors import EngineError, Refused
from flywheel.ids import seed_of
from flywheel.records import Trace, model_spans
from tasks.playing import pool_of
from trainer.orchestrator.contract import Attempt, Load, Played

if TYPE_CHECKING:
    from environments.attempt import Stage
    from environments.define import Environment
    from serving.conversation import Put
    from serving.interception import Served
    from serving.publishing import Seat, WeightPublisher

BEAT_S = 60.0
"""For one beat, in which an engine that was started anew gets its weights again."""
RUNTIMES = 32
"""Of one environment, at a time."""
_log = logging.getLogger("flywheel.rl")


class Rules(NamedTuple):
    """What all rollouts of a run have in common."""

    project: str
    run_id: str
    temperature: float
    max_tokens: int
    """Of one answer."""
    repeatable: bool = False
    """The same seed gives the same bits (on the embedded engine): for synchronous runs."""

    def ticket(self, environment: "Environment", attempt: Attempt) -> Ticket:
        """Of the visit, not of the problem: a run may meet one more than once."""
        visit = attempt.visit
        return Ticket(
            project=self.project,
            source=f"rollout:{self.run_id}",
            external_id=f"{visit.id}/{attempt.k}",
            origin="rollout",
            problem_id=visit.problem.id,
            run_id=self.run_id,
            attempt=attempt.k,
            attributes={"environment": environment.name, "visit": visit.id},
        )

    def forced(self, environment: "Environment", attempt: Attempt) -> Forced:
        return Forced(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=seed_of(self.run_id, attempt.visit.id, attempt.k),
            calls=environment.harness.budget.turns,
            steady=self.repeatable,
        )


class EpisodePlayer:
    def __init__(
        self,
        name: str,
        stages: Mapping[str, "Stage"],
        seat: "Seat",
        publisher: "WeightPublisher",
        rules: Rules,
    ) -> None:
        """`stages`: by the name of the run's environment."""
        self.name, self.rules = name, rules
        self._stages, self._seat, self._publisher = stages, seat, publisher

    async def play(self, attempt: Attempt, version: int) -> Played:
        """`version` is what the seat's policies say: they have the newest that was confirmed.

        Raises:
            EngineError: infrastructure failed it.
        """
        from environments.attempt import FAILED, play

        loop = asyncio.get_running_loop()
        stage, started = self._stages[attempt.visit.environment], loop.time()
        ticket = self.rules.ticket(stage.environment, attempt)
        forced = self.rules.forced(stage.environment, attempt)
        finished = await play(stage, attempt.visit.problem, ticket, forced)
        if finished.infrastructure:
            raise EngineError(
                f"rollout {attempt.k} of {attempt.visit.id} failed: "
                f"{finished.trace.attributes[FAILED]}"
            )
        by = sampled(finished.trace)
        return Played(
            attempt,
            finished,
            versions=tuple(by),
            tokens=sum(by.values()),
            started=started,
            ended=loop.time(),
            sampled=tuple(by.values()),
        )

    async def beat(self) -> bool:
        if self._seat.policies.halting:
            return True  # its engine is being given new weights, and calls wait for that
        try:
            async with asyncio.timeout(BEAT_S):
                if not await asyncio.to_thread(self._seat.client.ready):
                    return False
                return await self._publisher.revive(self._seat)
        except (EngineError, Refused, TimeoutError) as error:
            _log.warning("%s cannot play: %s", self.name, error or type(error).__name__)
            return False

    async def load(self) -> Load | None:
        try:
            said = await asyncio.to_thread(self._seat.client.load)
        except EngineError:
            return None
        return None if said is None else Load(said.running, said.waiting, said.cache_use)


@contextlib.asynccontextmanager
async def players(
    environments: Mapping[str, "Environment"],
    seats: Mapping[str, tuple["Served", "Seat"]],
    publisher: "WeightPublisher",
    rules: Rules,
    *,
    folder: Path,
    put: "Put",
) -> AsyncIterator[list[EpisodePlayer]]:
    """One player an engine, while the block lasts.

    Args:
        environments: by the names that visits have for them.
        seats: by the players' names.
        folder: where runtimes' workspaces lie.
        put: keeps what is too large for a record.
    """
    from environments.attempt import Stage
    from environments.endpoint import connect
    from serving.interception import Interception

    async with contextlib.AsyncExitStack() as stack:
        made = []
        for number, (name, (served, seat)) in enumerate(seats.items()):
            recorder = await stack.enter_async_context(
                Interception(served, put=put, policies=seat.policies)
            )
            stages = {}
            for key, environment in environments.items():
                session = await stack.enter_async_context(
                    connect(environment.harness.budget.wall_s)
                )
                place = folder / f"{number}-{key}"
                pool = pool_of(environment, place, RUNTIMES)
                stages[key] = Stage(environment, recorder, session, pool)
            made.append(EpisodePlayer(name, stages, seat, publisher, rules))
        yield made


def sampled(trace: Trace) -> dict[int, int]:
    """Version -> tokens of the trace that it sampled, ascending."""
    from serving.policies import version_of

    tokens: Counter[int] = Counter()
    for span in model_spans(trace):
        for choice in span.call.choices if span.call else ():
            for name in choice.tokens.policy_versions if choice.tokens else ():
                if choice.tokens and (version := version_of(name)) is not None:
                    tokens[version] += len(choice.tokens.completion_ids)
    return dict(sorted(tokens.items()))
