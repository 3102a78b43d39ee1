"""What the gateway tells a collector of its own work: one OpenTelemetry span a request, over OTLP.

Enters each `Seen` in the server's process; leaves spans in batches, with the GenAI conventions'
attributes and no text of any request. Invariant: a collector that is away costs spans, never an
answer.
"""

from typing import TYPE_CHECKING

from serving.observing import Seen

if TYPE_CHECKING:
    from opentelemetry.context import Context

_QUEUE = 4096


class SpansOut:
    """`hear` listens; `close` sends what waits."""

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=5)
        self._provider = TracerProvider(resource=Resource.create({"service.name": "flywheel"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE))
        self._tracer = self._provider.get_tracer("flywheel.gateway")

    def hear(self, seen: Seen) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        spent = seen.queued_s + (seen.total_s or 0.0)
        span = self._tracer.start_span(
            f"chat {seen.project}",
            context=_caller(seen.traceparent),
            kind=SpanKind.SERVER,
            start_time=seen.at - int(spent * 1e9),
            attributes=_attributes(seen),
        )
        if seen.end != "answered":
            span.set_status(StatusCode.ERROR, seen.code or seen.end)
        span.end(end_time=seen.at)

    def close(self) -> None:
        self._provider.shutdown()


def _attributes(seen: Seen) -> dict[str, str | int | float | bool]:
    """Only what is known."""
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": seen.project,
        "gen_ai.response.model": seen.deployment,
        "gen_ai.usage.input_tokens": seen.input_tokens,
        "gen_ai.usage.output_tokens": seen.output_tokens,
        "error.type": seen.code if seen.end != "answered" else None,
        "flywheel.trace_id": seen.trace_id,
        "flywheel.request_id": seen.request_id,
        "flywheel.end": seen.end,
        "flywheel.dialect": seen.dialect,
        "flywheel.shadow": seen.shadow or None,
        "flywheel.queued_s": seen.queued_s,
        "flywheel.first_token_s": seen.first_s,
    }
    return {name: value for name, value in said.items() if value is not None and value != ""}


def _caller(traceparent: str | None) -> "Context | None":
    """The caller's span as the parent, where it sent one."""
    if traceparent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})
