"""Runs rewards in a forked child, so that no reward can hurt the process that grades.

Enter: calls in order. Leave: (value, reason) for each, parallel to them. Invariant: a call that
hangs, dies or takes the whole child with it is a null with its reason, and the next call runs in
a fresh child; the child inherits the environment, so that nothing has to be pickled.
"""

import asyncio
import contextlib
import ctypes
import gc
import inspect
import math
import os
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from environments.define import Environment, Method, Ungraded
from flywheel.records import Problem, Span, Trace, last_answer

GIVE_UP = 3
"""After so many hangs or deaths of one reward in a batch, the rest of it is not tried."""
MEMORY = 2 << 30
"""Bytes that rewards may take beside what the grading process has."""
_KEPT = 2000
"""Characters of a traceback that a reason keeps: the last ones."""
_PR_SET_PDEATHSIG = 1

Outcome = tuple[float | None, str | None]
_Given = tuple[Trace, Problem | None, tuple[Trace, ...] | None]
_encode = msgspec.msgpack.encode
_given = msgspec.msgpack.Decoder(_Given)
_decode_outcome = msgspec.msgpack.Decoder(Outcome).decode


class Call(NamedTuple):
    """One reward of one trace."""

    method: Method
    trace: Trace
    problem: Problem | None
    group: Sequence[Trace] | None
    span: Span | None


def run_isolated(environment: Environment, calls: Sequence[Call]) -> list[Outcome]:
    """The outcome of each call; the time limit of each is the environment's."""
    outcomes: list[Outcome] = []
    lost: Counter[str] = Counter()
    while len(outcomes) < len(calls):
        name = calls[len(outcomes)].method.name
        if lost[name] >= GIVE_UP:
            outcomes.append((None, f"not tried: {name} hung or died {GIVE_UP} times before"))
            continue
        reason = _drain_child(environment, calls, outcomes, lost)
        if reason is not None:
            lost[calls[len(outcomes)].method.name] += 1
            outcomes.append((None, reason))
    return outcomes


def _drain_child(
    environment: Environment, calls: Sequence[Call], outcomes: list[Outcome], lost: Counter[str]
) -> str | None:
    """Appends what one child gives. Returns why it did not get further; None = it need not."""
    results, child_end = Pipe(duplex=False)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        results.close()
        _be_child(environment, calls[len(outcomes) :], child_end, parent)
    child_end.close()
    try:
        while len(outcomes) < len(calls):
            if lost[calls[len(outcomes)].method.name] >= GIVE_UP:
                return None
            if not results.poll(environment.limit_s):
                return f"took longer than {environment.limit_s:g} s"
            outcomes.append(_decode_outcome(results.recv_bytes()))
        return None
    except (EOFError, ConnectionError):
        return "the reward ended its process"
    finally:
        results.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _be_child(
    environment: Environment, calls: Sequence[Call], out: Connection, parent: int
) -> None:
    """Never returns. Dies with its parent, so that it holds none of the parent's locks longer; what
    rewards print goes to stderr, since stdout may be a command's JSON."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            gc.freeze()
            os.dup2(2, 1)
            sys.stdout = sys.stderr
            _bound_memory()
            _serve(environment, calls, out)
    finally:
        os._exit(0)


def _bound_memory() -> None:
    """So that a reward gets a MemoryError before the machine runs out."""
    data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    bound = data_pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (bound, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _serve(environment: Environment, calls: Sequence[Call], out: Connection) -> None:
    groups: dict[tuple[str, ...], Any] = {}
    state: dict[str, Any] = {}
    at = None
    for call in calls:
        if at is not call.trace:
            at, state = call.trace, {}
        out.send_bytes(_encode(_outcome_of(environment, call, state, groups)))


def _outcome_of(
    environment: Environment, call: Call, state: dict[str, Any], groups: dict[tuple[str, ...], Any]
) -> Outcome:
    try:
        return _one(environment, call, state, groups), None
    except Ungraded as error:
        return None, str(error)[-_KEPT:] or "not given"
    except BaseException:
        return None, traceback.format_exc()[-_KEPT:]


def _one(
    environment: Environment, call: Call, state: dict[str, Any], groups: dict[tuple[str, ...], Any]
) -> float:
    if call.method.mark.kind != "group_reward":
        return number_of(_called(environment, call, state))
    ids = [trace.id for trace in call.group or ()]
    key = (call.method.name, *ids)
    if key not in groups:
        groups.clear()
        groups[key] = _called(environment, call, {})
    values = groups[key]
    if not isinstance(values, Sequence) or len(values) != len(ids):
        raise TypeError(f"a group reward returns one number for each of its {len(ids)} traces")
    return number_of(values[ids.index(call.trace.id)])


def _called(environment: Environment, call: Call, state: dict[str, Any]) -> Any:
    """Calls the method on copies, and refuses what it returns where it has changed them."""
    group = tuple(call.group) if call.group and "group" in call.method.arguments else None
    before = _encode((call.trace, call.problem, group))
    trace, problem, group = given = _given.decode(before)
    choice = last_answer(trace)
    offered = {
        "trace": trace,
        "problem": problem,
        "group": group,
        "choice": choice,
        "answer": choice.message.text if choice else "",
        "span": call.span,
        "state": state,
    }
    arguments = {name: offered[name] for name in call.method.arguments}
    value = getattr(environment, call.method.name)(**arguments)
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    if _encode(given) != before:
        raise Ungraded("it changed the trace or the problem that it was given")
    return value


async def _awaited(value: Any) -> Any:
    return await value


def number_of(value: Any) -> float:
    """`value` as a finite number; a truth value counts 0 or 1, a string is no number.

    Raises:
        Ungraded: it is none.
    """
    if not isinstance(value, Real) and not hasattr(value, "__float__"):
        raise Ungraded(f"returned {type(value).__name__} {str(value)[:80]!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise Ungraded(f"returned {number}, which is no finite number")
    return number
