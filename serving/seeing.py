"""One attempt at a deployment as `Seen` has it: from the request, its span and what went wrong.

Enters a routed request at its end; leaves what metrics, guard rails and breakers judge by. A fault
of the caller's (a 4xx that the engine gave) is never laid at the deployment's door, nor is ours.
"""

import asyncio
import time

from flywheel.records import Span, Usage
from serving import wire
from serving.answer import Answer
from serving.form import broken, declined
from serving.observing import End, Seen
from serving.refusal import ApiError
from serving.routed import Routed


def answered(
    asked: Routed, span: Span | None, answer: Answer | None, failure: BaseException | None
) -> Seen:
    """The attempt that the request ended with.

    Args:
        span: as it is recorded; None = it has no stored form.
        failure: None = the answer is whole.
    """
    whole = answer if failure is None and asked.dialect.recorded else None
    call = span.call if span else None
    usage = call.usage if call else Usage()
    return _seen(
        asked,
        end_of(failure, begun=asked.first_byte is not None),
        failure,
        usage=usage,
        cost=call.cost_usd if call else None,
        refusal=None if whole is None else declined(whole),
        why=None if whole is None else broken(asked.chat, whole),
    )


def fell_back(asked: Routed, failure: BaseException) -> Seen:
    """An attempt that failed before another deployment answered; `asked` still names the first."""
    return _seen(asked, "fell_back", failure)


def turned_away(
    asked: Routed | None, failure: BaseException, *, dialect: str, caller: str, at: int
) -> Seen:
    """Before anything was spent on it.

    Args:
        asked: None = it is not even known whose it is.
        at: when it came.
    """
    return Seen(
        project=asked.deployment.project if asked else "",
        deployment=asked.deployment.name if asked else "",
        end="hung_up" if isinstance(failure, wire.HungUp) else "refused",
        at=time.time_ns(),
        caller=caller,
        dialect=dialect,
        code=code_of(failure),
        queued_s=(time.time_ns() - (asked.start if asked else at)) / 1e9,
        request_id=asked.request_id if asked else "",
        traceparent=asked.traceparent if asked else None,
    )


def code_of(failure: BaseException | None) -> str | None:
    if isinstance(failure, ApiError):
        return failure.code or f"status_{failure.status}"
    if failure is None or isinstance(failure, wire.HungUp | asyncio.CancelledError):
        return None
    return "engine_error"


def end_of(failure: BaseException | None, *, begun: bool) -> End:
    """`begun`: whether any of the answer had come."""
    if failure is None:
        return "answered"
    if isinstance(failure, wire.HungUp | asyncio.CancelledError):
        # Who left, we or the client, says nothing of the deployment.
        return "hung_up"
    if isinstance(failure, ApiError) and failure.status < 500 and failure.status != 429:
        return "refused"
    if isinstance(failure, ApiError) and failure.code == "not_recorded":
        return "refused"
    return "cut" if begun else "failed"


def _seen(
    asked: Routed,
    end: End,
    failure: BaseException | None,
    *,
    usage: Usage | None = None,
    cost: float | None = None,
    refusal: bool | None = None,
    why: str | None = None,
) -> Seen:
    now, turn, route = time.time_ns(), asked.turn or asked.start, asked.route
    first = asked.first_byte
    return Seen(
        project=asked.deployment.project,
        deployment=asked.deployment.name,
        end=end,
        at=now,
        caller=asked.caller,
        dialect=asked.dialect.name,
        code=code_of(failure),
        shadow="shadow_of" in asked.notes,
        canary=route is not None and route.challenger is not None and route.share > 0,
        queued_s=(turn - asked.start) / 1e9,
        first_s=None if first is None else (first - turn) / 1e9,
        total_s=(now - turn) / 1e9,
        input_tokens=usage.input_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        cost_usd=cost,
        trace_id=asked.trace_id if asked.kept else "",
        request_id=asked.request_id,
        traceparent=asked.traceparent,
        refusal=refusal,
        broken=why,
    )
