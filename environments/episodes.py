"""Many episodes side by side: each problem met by the environment's harness, recorded, ended.

Enter: attempts, a recorder and, where programs run, a pool of runtimes. Leave: traces, as they
end. Invariants: ids and seeds derive from (run, problem, k) and from no clock; every episode ends
in a trace that says how (`attributes["ended"]`); what is nobody's answer (infrastructure, a fault
of the environment's own code) stands in `attributes["failed"]` and is graded null; at most
`concurrency` episodes and their results are held at a time, however many there are.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, NamedTuple

from environments.attempt import FAILED, Finished, Stage, play
from environments.define import Environment
from environments.endpoint import connect
from environments.harnesses.contract import Forced, Recorder, Ticket
from flywheel.errors import EngineError
from flywheel.ids import seed_of
from flywheel.records import Origin, Problem

if TYPE_CHECKING:
    from environments.runtimes.pool import Pool

GIVE_UP = 8
"""So many episodes in a row that end for infrastructure, or as many as run at once where that is
more, end the run."""


class Run(NamedTuple):
    """What all episodes of a run have in common."""

    project: str
    run_id: str
    origin: Origin
    side: str = ""
    """Tells apart two models that meet the same problems in one run."""
    samples: int = 1
    """Of each problem; the attempts that are handed in say which."""
    temperature: float = 1.0
    max_tokens: int = 1024
    """Of one answer."""
    concurrency: int = 32
    tries: int = 3
    """Of one episode, where infrastructure fails."""
    backoff_s: float = 0.5
    """Before the second try; doubled before each further one."""

    @property
    def source(self) -> str:
        return ":".join(part for part in (self.origin, self.run_id, self.side) if part)

    def ticket(self, environment: Environment, problem: Problem, k: int) -> Ticket:
        return Ticket(
            project=self.project,
            source=self.source,
            external_id=f"{problem.id}/{k}",
            origin=self.origin,
            problem_id=problem.id,
            run_id=self.run_id,
            attempt=k,
            attributes={
                "environment": environment.name,
                **({"side": self.side} if self.side else {}),
            },
        )

    def forced(self, environment: Environment, problem: Problem, k: int) -> Forced:
        return Forced(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=seed_of(self.run_id, problem.id, k),
            calls=environment.harness.budget.turns,
        )


async def episodes(
    environment: Environment,
    attempts: Iterable[tuple[Problem, int]],
    recorder: Recorder,
    run: Run,
    *,
    pool: "Pool | None" = None,
) -> AsyncGenerator[Finished, None]:
    """Each attempt's trace, as it ends; the next attempt is drawn when there is room.

    Closing the iterator early (`contextlib.aclosing`) cancels what still runs, with its clean-ups.

    Raises:
        EngineError: no episode, or none of the last many, could be had for infrastructure.
    """
    results: asyncio.Queue[Finished | BaseException] = asyncio.Queue()
    running: set[asyncio.Task[None]] = set()
    watch = _Watch(max(GIVE_UP, run.concurrency))
    waiting = iter(attempts)
    session = connect(environment.harness.budget.wall_s)
    stage = Stage(environment, recorder, session, pool)

    async def one(problem: Problem, k: int) -> None:
        try:
            results.put_nowait(await _tried(stage, run, problem, k))
        except BaseException as error:
            results.put_nowait(error)

    try:
        held = 0
        while True:
            while held < run.concurrency and (attempt := next(waiting, None)):
                task = asyncio.create_task(one(*attempt))
                running.add(task)
                task.add_done_callback(running.discard)
                held += 1
            if not held:
                break
            finished = await results.get()
            held -= 1
            if isinstance(finished, BaseException):
                raise finished
            watch.saw(finished)
            yield finished
        watch.ended()
    finally:
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await session.close()


async def _tried(stage: Stage, run: Run, problem: Problem, k: int) -> Finished:
    """An episode, played again where infrastructure failed it."""
    ticket = run.ticket(stage.environment, problem, k)
    forced = run.forced(stage.environment, problem, k)
    for number in range(1, run.tries + 1):
        finished = await play(stage, problem, ticket, forced)
        if not finished.infrastructure or number == run.tries:
            break
        await asyncio.sleep(run.backoff_s * 2 ** (number - 1))
    return finished


class _Watch:
    """Whether the run gets anywhere."""

    def __init__(self, patience: int) -> None:
        self.patience, self.seen, self.lost = patience, 0, 0
        self.last = ""

    def saw(self, finished: Finished) -> None:
        self.seen += 1
        if not finished.infrastructure:
            self.lost = 0
            return
        self.lost += 1
        self.last = str(finished.trace.attributes[FAILED])
        if self.lost >= self.patience:
            raise EngineError(f"{self.lost} episodes in a row failed: {self.last}")

    def ended(self) -> None:
        if self.seen and self.lost == self.seen:
            raise EngineError(f"all {self.seen} episodes failed: {self.last}")
