"""Calls what an environment's author wrote, so that it cannot hold up everyone else's episodes.

Enter: a function, plain or async, and what it takes. Leaves: what it returns. Invariants: nothing
waits longer for it than its seconds; a plain function runs in a thread, one of an episode at a
time; one that never returns is left behind in its thread, and too many of them end the run.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakSet

from environments.harnesses.contract import Episode, EpisodeFailed
from flywheel.records import Trace, last_answer, trace_id

HANGING = 64
"""Threads that may be left behind in this process."""
_left: "WeakSet[threading.Thread]" = WeakSet()


class OutOfTime(Exception):
    """It took longer than it may."""


async def bounded(
    function: Callable[..., Any], arguments: Mapping[str, Any], seconds: float, alone: asyncio.Lock
) -> Any:
    """
    Raises:
        OutOfTime: it has not returned within `seconds`.
        EpisodeFailed: too many functions hang already.
    """
    if inspect.iscoroutinefunction(function):
        return await _within(seconds, _contained(function(**arguments)))
    async with alone:
        value = await _within(seconds, _in_thread(function, arguments))
    return await _within(seconds, _contained(value)) if inspect.isawaitable(value) else value


async def _contained(value: Awaitable[Any]) -> Any:
    """A function that ends the program ends its episode alone."""
    try:
        return await value
    except SystemExit as error:
        raise RuntimeError(f"raised SystemExit: {error}") from error


async def _within(seconds: float, value: Any) -> Any:
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            return await value
    except TimeoutError as error:
        if clock.expired():
            raise OutOfTime(f"took longer than {seconds:g} s") from error
        raise


async def _in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """A daemon thread of its own: a thread of a pool would be waited for when the process ends."""
    if sum(thread.is_alive() for thread in _left) >= HANGING:
        raise EpisodeFailed(f"{HANGING} functions hang in this process; make them async")
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        try:
            said, error = function(**arguments), None
        except Exception as raised:
            said, error = None, raised
        except BaseException as raised:
            said, error = None, RuntimeError(f"raised {type(raised).__name__}: {raised}")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_settle, outcome, said, error)

    thread = threading.Thread(target=work, daemon=True, name=f"flywheel {function}"[:80])
    thread.start()
    try:
        return await outcome
    except asyncio.CancelledError:
        _left.add(thread)
        raise


def _settle(outcome: "asyncio.Future[Any]", said: Any, error: Exception | None) -> None:
    if outcome.done():
        return
    if isinstance(error, StopIteration):
        error = RuntimeError("raised StopIteration")
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(said)


async def call_marked(episode: Episode, name: str, takes: tuple[str, ...], seconds: float) -> Any:
    """What one of the environment's set-ups, stops or clean-ups returns; it gets what it names."""
    offered: dict[str, Any] = {
        "problem": episode.problem,
        "state": episode.state,
        "runtime": episode.runtime,
    }
    if {"trace", "answer", "choice"} & set(takes):
        trace = so_far(episode)
        choice = last_answer(trace)
        offered |= {
            "trace": trace,
            "choice": choice,
            "answer": choice.message.text if choice else "",
        }
    function = getattr(episode.environment, name)
    arguments = {key: offered.get(key) for key in takes}
    return await bounded(function, arguments, seconds, episode.alone)


def so_far(episode: Episode) -> Trace:
    """What the harness met up to now; the tokens are the recorder's."""
    ticket = episode.ticket
    assert ticket is not None, "an episode that is under way has its ticket"
    return Trace(
        id=trace_id(ticket.project, ticket.source, ticket.external_id),
        project=ticket.project,
        source=ticket.source,
        external_id=ticket.external_id,
        origin=ticket.origin,
        spans=(*episode.calls, *episode.spans),
        problem_id=ticket.problem_id,
        run_id=ticket.run_id,
        attempt=ticket.attempt,
        attributes=dict(ticket.attributes),
    )
