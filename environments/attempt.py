"""One attempt at one problem, from its address to its trace.

Enter: the stage that all attempts share, a problem, who the episode is. Leaves: a Finished. The
order: an address, a runtime, set-ups, the harness within its budget, clean-ups, the trace, the
rewards that need the live runtime, the runtime's end. Invariant: a trace whose `attributes` have
`failed` says nothing about its model: infrastructure failed, or the environment's own code.
"""

import asyncio
import contextlib
import random
import traceback
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from environments.define import Environment
from environments.endpoint import CallFailed
from environments.harnesses.asking import Ended
from environments.harnesses.calling import call_marked
from environments.harnesses.contract import (
    Access,
    Episode,
    EpisodeFailed,
    Forced,
    Recorder,
    Ticket,
)
from environments.marks import Kind
from environments.runtimes.contract import Runtime, RuntimeFailure
from flywheel.episodes import trace_of
from flywheel.errors import BadRecord, EngineError, FlywheelError
from flywheel.records import Grade, Problem, Trace

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from environments.runtimes.pool import Pool

FAILED, FAILED_BY = "failed", "failed_by"
"""Attributes of a trace that is nobody's answer: why, and by whose fault."""
By = Literal["infrastructure", "environment", "call"]
AROUND_S = 300.0
"""Of one set-up or clean-up."""
_KEPT = 4000
"""Characters of a traceback that a trace keeps: the last ones."""
_STATE = 2**20
"""Bytes of one entry of the state that a trace keeps."""
_INFRASTRUCTURE = (EpisodeFailed, RuntimeFailure, EngineError, ConnectionError)


class Finished(NamedTuple):
    trace: Trace
    grades: list[Grade]
    """Of the methods that need the live runtime; `grade_all` gives the others, in batches."""

    @property
    def infrastructure(self) -> bool:
        """Whether it failed for a reason that another try may not meet."""
        return self.trace.attributes.get(FAILED_BY) == "infrastructure"


class Fault(NamedTuple):
    by: By
    reason: str


class Stage(NamedTuple):
    """What all episodes of a run share."""

    environment: Environment
    recorder: Recorder
    session: "ClientSession"
    pool: "Pool | None"


async def play(stage: Stage, problem: Problem, ticket: Ticket, forced: Forced) -> Finished:
    try:
        access = await stage.recorder.open(ticket, forced)
    except _INFRASTRUCTURE as error:
        return Finished(_noted(trace_of(ticket), None, Fault("infrastructure", str(error))), [])
    episode = Episode(
        environment=stage.environment,
        problem=problem,
        access=access,
        rng=random.Random(forced.seed),
        ticket=ticket,
        session=stage.session,
    )
    closing = _Closing(stage.recorder, access, ticket, episode)
    try:
        async with _runtime(stage) as episode.runtime:
            fault = await _played(episode)
            trace = await closing.trace(fault)
            return Finished(trace, await _live_grades(episode, trace))
    except _INFRASTRUCTURE as error:
        return Finished(await closing.trace(Fault("infrastructure", str(error))), [])
    except asyncio.CancelledError:
        await closing.trace(Fault("infrastructure", "cancelled"))
        raise


@contextlib.asynccontextmanager
async def _runtime(stage: Stage) -> AsyncIterator[Runtime | None]:
    if stage.pool is None:
        yield None
        return
    async with stage.pool.runtime() as runtime:
        yield runtime


async def _played(episode: Episode) -> Fault | None:
    """Plays the episode; who is to blame where it has no end of its own."""
    try:
        try:
            await _marked(episode, "setup")
            await _acted(episode)
        finally:
            await _cleaned(episode)
    except _INFRASTRUCTURE as error:
        return Fault("infrastructure", str(error) or type(error).__name__)
    except CallFailed as error:
        return Fault("call", str(error))
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {error}"[:500]
        return Fault("environment", f"{told}\n{traceback.format_exc()[-_KEPT:]}")
    return None


async def _acted(episode: Episode) -> None:
    clock = asyncio.timeout(episode.budget.wall_s)
    try:
        async with clock:
            await episode.environment.act(episode)
            episode.ended = episode.ended or "answered"
    except Ended as end:
        episode.ended = end.why
    except CallFailed as error:
        if not error.too_long:
            raise
        episode.ended = "budget: window"
    except TimeoutError:
        if not clock.expired():
            raise
        episode.ended = "budget: wall"


async def _cleaned(episode: Episode) -> None:
    """A clean-up that fails takes nothing from what the model did."""
    try:
        await _marked(episode, "cleanup")
    except (Exception, SystemExit):
        episode.notes["cleanup"] = traceback.format_exc()[-_KEPT:]


async def _marked(episode: Episode, kind: Kind) -> None:
    for method in episode.environment.methods:
        if method.mark.kind == kind:
            await call_marked(episode, method.name, method.arguments, AROUND_S)


class _Closing:
    """Closes an episode's address once, however it ended."""

    def __init__(
        self, recorder: Recorder, access: Access, ticket: Ticket, episode: Episode
    ) -> None:
        self.recorder, self.access, self.ticket = recorder, access, ticket
        self.episode = episode
        self.closed: Trace | None = None

    async def trace(self, fault: Fault | None) -> Trace:
        if self.closed is None:
            reason = fault.reason if fault else None
            try:
                self.closed = await self.recorder.close(self.access, self.episode.spans, reason)
            except FlywheelError as error:
                self.closed = trace_of(self.ticket)
                by: By = "environment" if isinstance(error, BadRecord) else "infrastructure"
                fault = fault or Fault(by, str(error))
        return _noted(self.closed, self.episode, fault)


def _noted(trace: Trace, episode: Episode | None, fault: Fault | None) -> Trace:
    """The trace with how it ended, and the state that rewards may need."""
    notes: dict[str, Any] = dict(episode.notes) if episode else {}
    if episode and episode.ended:
        notes["ended"] = episode.ended
    if episode and episode.state:
        notes["state"] = _kept(episode.state)
    if fault:
        notes |= {FAILED: fault.reason, FAILED_BY: fault.by}
    return msgspec.structs.replace(trace, attributes={**trace.attributes, **notes})


def _kept(state: dict[str, Any]) -> dict[str, Any]:
    """What of the state is JSON and not too large."""
    kept = {}
    for name, value in state.items():
        with contextlib.suppress(TypeError, ValueError, OverflowError, RecursionError):
            encoded = msgspec.json.encode(value)
            if len(encoded) <= _STATE:
                kept[str(name)] = msgspec.json.decode(encoded)
    return kept


async def _live_grades(episode: Episode, trace: Trace) -> list[Grade]:
    """Of the rewards that name `runtime`, while it is there."""
    from environments.grading import Item, grade_all

    around = ("setup", "stop", "cleanup")
    environment = episode.environment
    live = [one for one in environment.methods if one.live and one.mark.kind not in around]
    if episode.runtime is None or not live or FAILED_BY in trace.attributes:
        return []
    item = Item(trace, episode.problem, runtime=episode.runtime)
    (grades,) = await asyncio.to_thread(grade_all, environment, [item], methods=live)
    return grades
