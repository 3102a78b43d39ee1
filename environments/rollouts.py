"""Samples a model's answers to problems over HTTP, as any client would.

Enter: one chunk of problems and a sampler. Leave: traces, one an answer, in the order of problems
and attempts. Invariants: ids and seeds derive from (run, problem, k) and from no clock; a call that
failed is a trace with its error, and an engine that is gone is an EngineError, so that the whole
chunk is tried again.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from environments.chat import Answer, Policy, answer_of, to_chat
from environments.define import Environment
from flywheel.errors import BadRecord, EngineError
from flywheel.ids import new_ulid, seed_of
from flywheel.records import ModelCall, Origin, Problem, Sampling, Span, Trace, trace_id

if TYPE_CHECKING:
    from openai import AsyncOpenAI

AT_ONCE = 64
"""Calls under way together where they are no gang; a gang is under way whole."""
_OF_THE_CALL = {400, 413, 422, 500}
"""HTTP statuses that speak of one call; any other says that the engine cannot be used."""


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


class Plan(NamedTuple):
    """What one chunk is sampled with."""

    project: str
    run_id: str
    side: str
    origin: Origin
    temperature: float
    max_tokens: int
    gang: dict[str, Any] | None

    def source(self) -> str:
        return ":".join(part for part in (self.origin, self.run_id, self.side) if part)

    def seed(self, problem: Problem, k: int) -> int:
        return seed_of(self.run_id, problem.id, k)


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
) -> list[Trace]:
    """`samples` answers to each of `problems`, sent as one gang: one batch of the engine's.

    `side` tells apart two models that answer the same problems in one run (champion, candidate);
    their seeds are the same.

    Raises:
        EngineError: the engine is gone, does not know the model, or failed on every call.
    """
    size = len(problems) * samples
    if not size:
        return []
    # A new name at each try: one that died half-way may have left the old name waiting for more.
    name = f"{chunk_id or run_id}/{side}/{new_ulid()}"
    together = {"id": name, "size": size} if gang else None
    plan = Plan(project, run_id, side, origin, temperature, max_tokens, together)
    attempts = [(problem, k) for problem in problems for k in range(samples)]
    traces = asyncio.run(_sample_all(environment, attempts, sampler, plan))
    errors = [trace.spans[0].error for trace in traces]
    if all(errors) and not all(error and error.startswith("HTTP 4") for error in errors):
        raise EngineError(f"the engine at {sampler.url} failed on all {size} calls: {errors[0]}")
    return traces


async def _sample_all(
    environment: Environment,
    attempts: Sequence[tuple[Problem, int]],
    sampler: Sampler,
    plan: Plan,
) -> list[Trace]:
    turn = asyncio.Semaphore(len(attempts) if plan.gang else AT_ONCE)
    async with _client(sampler) as client:
        try:
            async with asyncio.TaskGroup() as together:
                running = [
                    together.create_task(_one(environment, client, turn, problem, k, sampler, plan))
                    for problem, k in attempts
                ]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
    return [task.result() for task in running]


async def _one(
    environment: Environment,
    client: "AsyncOpenAI",
    turn: asyncio.Semaphore,
    problem: Problem,
    k: int,
    sampler: Sampler,
    plan: Plan,
) -> Trace:
    """One answer, or what kept it from coming."""
    answer: Answer | None = None
    error: str | None = None
    async with turn:
        start = time.time_ns()
        try:
            answer = await _ask(client, problem, plan.seed(problem, k), sampler, plan)
        except BadRecord as bad:
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
            temperature=plan.temperature,
            top_p=1.0,
            max_tokens=plan.max_tokens,
            seed=plan.seed(problem, k),
        ),
    )
    if answer:
        call = msgspec.structs.replace(call, usage=answer.usage)
    notes = answer.notes if answer and sampler.tokens else {}
    span = Span(id="answer", kind="model", start=start, end=end, error=error, call=call,
                attributes=notes)  # fmt: skip
    return _trace(environment, problem, k, plan, span)


def _trace(environment: Environment, problem: Problem, k: int, plan: Plan, span: Span) -> Trace:
    external = f"{problem.id}/{k}"
    return Trace(
        id=trace_id(plan.project, plan.source(), external),
        project=plan.project,
        source=plan.source(),
        external_id=external,
        origin=plan.origin,
        spans=(span,),
        problem_id=problem.id,
        run_id=plan.run_id,
        attempt=k,
        attributes={"environment": environment.name, **({"side": plan.side} if plan.side else {})},
    )


async def _ask(
    client: "AsyncOpenAI", problem: Problem, seed: int, sampler: Sampler, plan: Plan
) -> Answer:
    """
    Raises:
        BadRecord: this one call failed.
        EngineError: the engine cannot be used.
    """
    from openai import APIConnectionError, APIError, APIStatusError

    extra: dict[str, Any] = {"return_token_ids": True} if sampler.tokens else {}
    if plan.gang:
        extra["flywheel_gang"] = plan.gang
    asked: dict[str, Any] = {"tools": list(problem.tools)} if problem.tools else {}
    if sampler.tokens:
        asked["logprobs"] = True
    try:
        completion = await client.chat.completions.create(
            model=sampler.model,
            messages=to_chat(problem.messages),  # type: ignore[arg-type]
            temperature=plan.temperature,
            top_p=1.0,
            max_tokens=plan.max_tokens,
            seed=seed,
            extra_body=extra,
            **asked,
        )
        by = Policy(
            sampler.deployment or sampler.model, sampler.template_digest, sampler.tokenizer_digest
        )
        return answer_of(completion, by)
    except APIConnectionError as error:
        reason = str(error.__cause__ or error) or type(error.__cause__ or error).__name__
        raise EngineError(f"no answer from the engine at {sampler.url}: {reason}") from error
    except APIStatusError as error:
        message = f"HTTP {error.status_code} from {sampler.url}: {error.message[:500]}"
        if error.status_code in _OF_THE_CALL:
            raise BadRecord(message) from error
        raise EngineError(f"{message} (model {sampler.model!r})") from error
    except (APIError, AttributeError, TypeError, ValueError) as error:
        raise BadRecord(f"the engine's answer is no chat completion: {error}") from error


def _client(sampler: Sampler) -> "AsyncOpenAI":
    """A client that never tries again by itself: a gang would wait for a member in vain."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    base = sampler.url.rstrip("/")
    local = urlsplit(base).hostname in ("127.0.0.1", "localhost", "::1")
    return AsyncOpenAI(
        base_url=base if base.endswith("/v1") else base + "/v1",
        api_key=sampler.key or "none",
        max_retries=0,
        timeout=sampler.timeout_s,
        http_client=DefaultAsyncHttpxClient(trust_env=not local, timeout=sampler.timeout_s),
    )
