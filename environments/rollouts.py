"""Samples a model's answers to problems over HTTP, as any client would.

Enter: one chunk of problems and a sampler. Leave: traces, one an attempt, in the order of problems
and attempts. Invariants: ids and seeds derive from (run, problem, k) and from no clock; a call that
failed is a trace with its error, and an engine that is gone is an EngineError, so that the whole
chunk is tried again.

One answer without a runtime goes straight to the engine, the whole chunk as one gang; every other
harness plays its episodes at a recorder's addresses (`environments/episodes.py`).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from environments.answers import Answer, Policy, answer_of, completion_of
from environments.attempt import Finished
from environments.define import Environment
from environments.endpoint import CallFailed, base_of, complete, connect, is_local
from environments.episodes import Run, episodes
from environments.harnesses.contract import Recorder, Single
from flywheel.chat import body_of, to_chat
from flywheel.episodes import trace_of
from flywheel.errors import BadRecord, EngineError, UsageError
from flywheel.ids import new_ulid, seed_of
from flywheel.records import ModelCall, Origin, Problem, Sampling, Span, Trace

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from environments.runtimes.pool import Pool

AT_ONCE = 64
"""Calls under way together where they are no gang; a gang is under way whole."""


class Sampler(NamedTuple):
    """Where answers come from: any server that speaks OpenAI's protocol."""

    url: str
    model: str
    """The name that the server knows it by."""
    key: str | None = None
    deployment: str | None = None
    """The name that records bear; None = `model`."""
    template_digest: str | None = None
    """Of the server's chat template, which its tokens come from; None = it did not say."""
    tokenizer_digest: str | None = None
    timeout_s: float = 600.0
    tokens: bool = True
    """False = a server that gives neither token ids nor log-probabilities."""


class Opened(NamedTuple):
    """What episodes of several calls are played with; open for one chunk."""

    recorder: Recorder
    pool: "Pool | None" = None


Opens = Callable[[], AbstractAsyncContextManager[Opened]]


class Asks(NamedTuple):
    """One chunk of single answers: who asks, whom, and as which gang."""

    run: Run
    sampler: Sampler
    gang: dict[str, Any] | None

    def seed(self, problem: Problem, k: int) -> int:
        return seed_of(self.run.run_id, problem.id, k)


def sample(
    environment: Environment,
    problems: Sequence[Problem],
    sampler: Sampler,
    *,
    run_id: str,
    project: str,
    samples: int,
    temperature: float,
    max_tokens: int,
    origin: Origin = "rollout",
    side: str = "",
    chunk_id: str | None = None,
    gang: bool = True,
    opens: Opens | None = None,
) -> list[Finished]:
    """`samples` attempts at each of `problems`; single answers as one gang, one batch of the
    engine's.

    Args:
        side: tells apart two models that answer the same problems in one run (champion,
            candidate); their seeds are the same.
        opens: gives what an environment of several calls needs.

    Raises:
        EngineError: the engine is gone, does not know the model, or failed on every call.
    """
    attempts = [(problem, k) for problem in problems for k in range(samples)]
    if not attempts:
        return []
    run = Run(project, run_id, origin, side, samples, temperature, max_tokens)
    if not is_one_call(environment):
        if opens is None:
            raise UsageError(f"environment {environment.name} needs a recorder for its episodes")
        return asyncio.run(_played(environment, attempts, run, opens))
    # A new name at each try: one that died half-way may have left the old name waiting for more.
    name = f"{chunk_id or run_id}/{side}/{new_ulid()}"
    together = {"id": name, "size": len(attempts)} if gang else None
    traces = asyncio.run(_answered(environment, attempts, Asks(run, sampler, together)))
    errors = [trace.spans[0].error for trace in traces]
    if all(errors) and not all(error and error.startswith("HTTP 4") for error in errors):
        raise EngineError(
            f"the engine at {sampler.url} failed on all {len(attempts)} calls: {errors[0]}"
        )
    return [Finished(trace, []) for trace in traces]


def is_one_call(environment: Environment) -> bool:
    """Whether an attempt is one call with nothing around it."""
    around = any(method.mark.kind in ("setup", "stop", "cleanup") for method in environment.methods)
    own = type(environment).act is not Environment.act
    plain = isinstance(environment.harness, Single) and environment.runtime is None
    return plain and not around and not own


# --- episodes -----------------------------------------------------------------------------------


async def _played(
    environment: Environment, attempts: Sequence[tuple[Problem, int]], run: Run, opens: Opens
) -> list[Finished]:
    """All episodes of the chunk, in the order of `attempts`."""
    found: dict[tuple[str | None, int | None], Finished] = {}
    async with AsyncExitStack() as stack:
        recorder, pool = await stack.enter_async_context(opens())
        playing = episodes(environment, attempts, recorder, run, pool=pool)
        async for finished in await stack.enter_async_context(aclosing(playing)):
            found[finished.trace.problem_id, finished.trace.attempt] = finished
    return [found[problem.id, k] for problem, k in attempts]


# --- single answers -----------------------------------------------------------------------------


async def _answered(
    environment: Environment, attempts: Sequence[tuple[Problem, int]], asks: Asks
) -> list[Trace]:
    turn = asyncio.Semaphore(len(attempts) if asks.gang else AT_ONCE)
    sampler = asks.sampler
    async with connect(sampler.timeout_s, proxies=not is_local(sampler.url)) as session:
        try:
            async with asyncio.TaskGroup() as together:
                running = [
                    together.create_task(_one(environment, session, turn, problem, k, asks))
                    for problem, k in attempts
                ]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
    return [task.result() for task in running]


async def _one(
    environment: Environment,
    session: "ClientSession",
    turn: asyncio.Semaphore,
    problem: Problem,
    k: int,
    asks: Asks,
) -> Trace:
    """One answer, or what kept it from coming."""
    answer: Answer | None = None
    error: str | None = None
    sampler, run = asks.sampler, asks.run
    async with turn:
        start = time.time_ns()
        try:
            answer = await _ask(session, problem, asks.seed(problem, k), asks)
        except (BadRecord, CallFailed) as bad:
            error = str(bad)
        end = time.time_ns()
    if answer is not None and not answer.choices:
        error = "the engine answered without a choice"
    call = ModelCall(
        input=problem.messages,
        tools=problem.tools,
        choices=answer.choices if answer else (),
        model=sampler.model,
        response_model=answer.model if answer else None,
        deployment=sampler.deployment or sampler.model,
        sampling=Sampling(
            temperature=run.temperature,
            top_p=1.0,
            max_tokens=run.max_tokens,
            seed=asks.seed(problem, k),
        ),
    )
    if answer:
        call = msgspec.structs.replace(call, usage=answer.usage)
    notes = answer.notes if answer and sampler.tokens else {}
    span = Span(id="answer", kind="model", start=start, end=end, error=error, call=call,
                attributes=notes)  # fmt: skip
    return trace_of(run.ticket(environment, problem, k), [span])


async def _ask(session: "ClientSession", problem: Problem, seed: int, asks: Asks) -> Answer:
    """
    Raises:
        BadRecord, CallFailed: this one call failed.
        EngineError: the engine cannot be used.
    """
    sampler, run = asks.sampler, asks.run
    asked: dict[str, Any] = {
        "model": sampler.model,
        "messages": to_chat(problem.messages),
        "temperature": run.temperature,
        "top_p": 1.0,
        "max_tokens": run.max_tokens,
        "seed": seed,
    }
    if problem.tools:
        asked["tools"] = list(problem.tools)
    if sampler.tokens:
        asked |= {"logprobs": True, "return_token_ids": True}
    if asks.gang:
        asked["flywheel_gang"] = asks.gang
    headers = {"authorization": f"Bearer {sampler.key or 'none'}"}
    try:
        reply = await complete(session, base_of(sampler.url), body_of(asked), headers)
    except EngineError as error:
        raise EngineError(f"{error} (model {sampler.model!r})") from error
    by = Policy(
        sampler.deployment or sampler.model, sampler.template_digest, sampler.tokenizer_digest
    )
    return answer_of(completion_of(reply.data), by)
