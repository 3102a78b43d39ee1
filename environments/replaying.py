"""Recorded conversations answered by another model, as far as the record can answer it back.

Enter: a recorded trace and a sampler. Leaves: the trace that the model makes of it. Each of the
user's turns is asked with the history that was really said before it, since what a user says next
answers what was served, not what would have been. Within a turn the model's tool calls get the
recorded results of the same calls. Invariant: nothing is made up: a call that the record has no
result for ends the replay as diverged, and no reward is given for it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from environments.answers import Answer, Policy, answer_of, completion_of
from environments.endpoint import CallFailed, base_of, complete, connect, is_local
from environments.told import Asked, Diverged, Results, turns_of
from flywheel.chat import body_of, to_chat
from flywheel.errors import BadRecord, EngineError
from flywheel.ids import seed_of
from flywheel.records import (
    Message,
    ModelCall,
    Problem,
    Sampling,
    Span,
    Trace,
    trace_id,
)

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from environments.rollouts import Sampler

AT_ONCE = 16
"""Conversations that are replayed at a time."""
MOST_CALLS = 32
"""Of one of the user's turns."""
ASKED_SO = frozenset(
    ("response_format", "tool_choice", "parallel_tool_calls", "presence_penalty", "logit_bias",
     "frequency_penalty", "repetition_penalty", "min_p", "reasoning_effort",
     "chat_template_kwargs")
)  # fmt: skip
"""What else shapes an answer and is asked again as the client asked it."""
Ended = Literal["answered", "diverged", "failed"]


class Replayed(NamedTuple):
    trace: Trace
    ended: Ended
    reason: str | None
    """Why it is not answered."""


class Asker(NamedTuple):
    """Who replays, and as which run."""

    sampler: "Sampler"
    run_id: str
    max_tokens: int
    """Of an answer to a request that named no bound."""


def replay(pairs: Sequence[tuple[Trace, Problem]], asker: Asker) -> list[Replayed]:
    """Each recorded trace, with the problem that it poses, answered anew; in their order.

    Raises:
        EngineError: the engine is gone, or failed at every conversation.
    """
    found = asyncio.run(_all(pairs, asker))
    failed = [one.reason or "" for one in found if one.ended == "failed"]
    if found and len(failed) == len(found) and not all("HTTP 4" in why for why in failed):
        raise EngineError(f"the engine at {asker.sampler.url} failed on all calls: {failed[0]}")
    return found


async def _all(pairs: Sequence[tuple[Trace, Problem]], asker: Asker) -> list[Replayed]:
    room, url = asyncio.Semaphore(AT_ONCE), asker.sampler.url
    async with connect(asker.sampler.timeout_s, proxies=not is_local(url)) as session:

        async def one(trace: Trace, problem: Problem) -> Replayed:
            async with room:
                return await _Replay(session, trace, problem, asker).run()

        try:
            async with asyncio.TaskGroup() as together:
                tasks = [together.create_task(one(*pair)) for pair in pairs]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
    return [task.result() for task in tasks]


class _Replay:
    """One conversation."""

    def __init__(
        self, session: "ClientSession", trace: Trace, problem: Problem, asker: Asker
    ) -> None:
        self.session, self.trace, self.problem, self.asker = session, trace, problem, asker
        self.spans: list[Span] = []

    async def run(self) -> Replayed:
        ended: Ended = "answered"
        reason: str | None = None
        try:
            for turn in turns_of(self.trace):
                await self._turn(turn)
        except Diverged as error:
            ended, reason = "diverged", str(error)
        except (BadRecord, CallFailed) as error:
            ended, reason = "failed", str(error)
        return Replayed(self._made(ended, reason), ended, reason)

    async def _turn(self, turn: Asked) -> None:
        messages, results = turn.call.input, Results(turn.told)
        for _ in range(MOST_CALLS):
            message = await self._answer(turn.call, messages)
            calls = message.tool_calls
            if not calls or (turn.open and results.spent):
                return
            told = [results.take(call) for call in calls]
            messages = (*messages, message, *(Message(role="tool", parts=(one,)) for one in told))
        raise Diverged(f"more than {MOST_CALLS} calls in one turn")

    async def _answer(self, recorded: ModelCall, messages: tuple[Message, ...]) -> Message:
        sampler, number = self.asker.sampler, len(self.spans)
        sampling = msgspec.structs.replace(
            recorded.sampling,
            max_tokens=recorded.sampling.max_tokens or self.asker.max_tokens,
            seed=seed_of(self.asker.run_id, self.trace.id, number),
        )
        start, error, answer = time.time_ns(), None, None
        try:
            answer = await self._ask(recorded, messages, sampling)
            if not answer.choices:
                raise BadRecord("the engine answered without a choice")
            return answer.choices[0].message
        except (BadRecord, CallFailed) as failed:
            error = str(failed)
            raise
        finally:
            call = ModelCall(
                input=messages,
                tools=recorded.tools,
                choices=answer.choices if answer else (),
                model=sampler.model,
                response_model=answer.model if answer else None,
                deployment=sampler.deployment or sampler.model,
                sampling=sampling,
            )
            if answer is not None:
                call = msgspec.structs.replace(call, usage=answer.usage)
            self.spans.append(
                Span(id=f"call {number}", kind="model", start=start, end=time.time_ns(),
                     error=error, call=call)
            )  # fmt: skip

    async def _ask(
        self, recorded: ModelCall, messages: tuple[Message, ...], sampling: Sampling
    ) -> Answer:
        sampler = self.asker.sampler
        asked = {"model": sampler.model, "messages": to_chat(messages), **_asked_so(sampling)}
        if recorded.tools:
            asked["tools"] = list(recorded.tools)
        if sampler.tokens:
            asked |= {"logprobs": True, "return_token_ids": True}
        headers = {"authorization": f"Bearer {sampler.key or 'none'}"}
        reply = await complete(self.session, base_of(sampler.url), body_of(asked), headers)
        by = Policy(
            sampler.deployment or sampler.model, sampler.template_digest, sampler.tokenizer_digest
        )
        return answer_of(completion_of(reply.data), by if sampler.tokens else None)

    def _made(self, ended: Ended, reason: str | None) -> Trace:
        source = f"replay:{self.asker.run_id}"
        notes: dict[str, Any] = {"side": "candidate", "replay_of": self.trace.id, "ended": ended}
        if reason is not None:
            notes |= {"failed": f"{ended}: {reason}", "failed_by": "record"}
        return Trace(
            id=trace_id(self.trace.project, source, self.trace.id),
            project=self.trace.project,
            source=source,
            external_id=self.trace.id,
            origin="evaluation",
            spans=tuple(self.spans),
            problem_id=self.problem.id,
            run_id=self.asker.run_id,
            attempt=0,
            attributes=notes,
        )


def _asked_so(sampling: Sampling) -> dict[str, Any]:
    """As the client asked for it; what it left out is the engine's to choose."""
    given: Mapping[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        **{name: value for name, value in sampling.other.items() if name in ASKED_SO},
    }
    return {name: value for name, value in given.items() if value is not None}
