"""What the gateway saw of one request, the moment that it ended: told to whoever listens.

Metrics count it, guard rails judge by it, the circuit breaker opens by it. It is never stored: the
trace is the record.
"""

import logging
from collections.abc import Callable
from typing import Literal

from flywheel.records import Record

End = Literal["answered", "failed", "cut", "hung_up", "refused", "fell_back"]
"""failed: no answer came. cut: the stream broke off. refused: by us, before anything was spent.
fell_back: this deployment failed, and another one answered."""


class Seen(Record, frozen=True, kw_only=True):
    project: str
    deployment: str
    end: End
    at: int
    """When it ended, nanoseconds since the epoch."""
    caller: str = ""
    """Name of its key; "" = none."""
    dialect: str = "chat.completions"
    code: str | None = None
    """Of a failure: `ApiError.code`."""
    shadow: bool = False
    canary: bool = False
    """Whether the route gave it a share then: such requests are what its guard rails judge by."""
    queued_s: float = 0.0
    """It waited for its turn."""
    first_s: float | None = None
    """From its turn to the first byte; None = none came."""
    total_s: float | None = None
    """From its turn to the last one."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    refusal: bool | None = None
    """Whether the model declined; None = there is no whole answer."""
    trace_id: str = ""
    """Of the record."""
    request_id: str = ""
    traceparent: str | None = None
    """The caller's own span (W3C Trace Context); None = it sent none."""
    broken: str | None = None
    """Why the answer is not of the form that was asked for; None = it is, or there is none."""


_log = logging.getLogger("flywheel.gateway")
Listener = Callable[[Seen], None]


class Observers:
    """Those who listen. One that fails must not cost an answer: it is dropped."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def tell(self, seen: Seen) -> None:
        for listener in list(self._listeners):
            try:
                listener(seen)
            except Exception:
                _log.exception("one who listens to the gateway failed, and is told nothing more")
                self._listeners.remove(listener)
