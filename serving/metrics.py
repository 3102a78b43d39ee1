"""What Prometheus reads at `/metrics`: of every gateway process together, and of the engine.

Enters each `Seen` as its request ends, and how the parts stand. Leaves the text form. What is not
known is not observed: no time to the first token where none came, no tokens where nobody counted.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serving.observing import Seen
from serving.state import EngineState

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
_OF = ("project", "deployment")
_UNKNOWN = float("nan")
_PHASES = ("starting", "ready", "restarting", "stopping", "failed")


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "How requests ended.", (*_OF, "dialect", "end", "code")
        )
        self._tokens = self._counter("tokens", "As the engine counted.", (*_OF, "key", "side"))
        self._cost = self._counter("cost_dollars", "Of answers whose price is known.", _OF)
        self._declined = self._counter("refusals", "Answers in which the model declined.", _OF)
        self._broken = self._counter("broken_answers", "Not of the form asked for.", _OF)
        self._total = self._histogram("request_seconds", "From its turn to the last byte.")
        self._first = self._histogram("first_token_seconds", "From its turn to the first byte.")
        self._queued = self._histogram("queue_seconds", "Waiting for its turn.")
        self._running = self._gauge("requests_running", "In work now.")
        self._waiting = self._gauge("requests_waiting", "Waiting for their turn now.")
        self._lag = self._gauge("journal_lag_seconds", "Age of the oldest line not on the disk.")
        self._dropped = self._gauge("dropped_records", "Answered and not recorded: must be 0.")
        self._engine = self._gauge("engine_up", "1 in the phase that the engine is in.", ("phase",))
        self._restarts = self._gauge("engine_restarts", "Since the server started.")
        self._engine_running = self._gauge("engine_requests_running", "That the engine computes.")
        self._engine_waiting = self._gauge("engine_requests_waiting", "In the engine's own queue.")
        self._engine_cache = self._gauge("engine_cache_use", "Share of its KV cache in use.")
        self._lacking = self._gauge("engine_lacking", "Weights that must be served and are not.")
        self._worker_restarts = self._gauge("worker_restarts", "Gateway processes started again.")
        self._routing = self._gauge("routing_version", "Of the routing file in force.")
        self._share = self._gauge(
            "canary_share", "Of the requests that the challenger answers.", ("project",)
        )

    def hear(self, seen: Seen) -> None:
        of = (seen.project, seen.deployment)
        self._requests.labels(*of, seen.dialect, seen.end, seen.code or "").inc()
        for side, count in (("input", seen.input_tokens), ("output", seen.output_tokens)):
            if count is not None:
                self._tokens.labels(*of, seen.caller, side).inc(count)
        for counter, amount in (
            (self._cost, seen.cost_usd),
            (self._declined, 1 if seen.refusal else None),
            (self._broken, 1 if seen.broken else None),
        ):
            if amount is not None:
                counter.labels(*of).inc(amount)
        for histogram, seconds in ((self._total, seen.total_s), (self._first, seen.first_s)):
            if seconds is not None:
                histogram.labels(*of).observe(seconds)
        if seen.end != "refused":
            self._queued.labels(*of).observe(seen.queued_s)

    def stand(self, *, running: int, waiting: int, lag_s: float, counts: Mapping[str, int]) -> None:
        self._running.set(running)
        self._waiting.set(waiting)
        self._lag.set(lag_s)
        self._dropped.set(counts.get("dropped", 0))

    def engine(self, state: EngineState) -> None:
        for phase in _PHASES:
            self._engine.labels(phase).set(phase == state.phase)
        self._restarts.set(state.restarts)
        self._lacking.set(len(state.lacking))
        load = state.load
        self._engine_running.set(_UNKNOWN if load is None else load.running)
        self._engine_waiting.set(_UNKNOWN if load is None else load.waiting)
        cache = None if load is None else load.cache_use
        self._engine_cache.set(_UNKNOWN if cache is None else cache)

    def serves(self, *, routing: int, shares: Mapping[str, float], worker_restarts: int) -> None:
        self._routing.set(routing)
        for project, share in shares.items():
            self._share.labels(project).set(share)
        self._worker_restarts.set(worker_restarts)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def _counter(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"flywheel_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"flywheel_{name}", about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str) -> Histogram:
        return Histogram(f"flywheel_{name}", about, _OF, registry=self.registry, buckets=_SECONDS)
