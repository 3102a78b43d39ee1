"""How busy an engine is, by the names that vLLM's /metrics has for it; the embedded engine says the
same ones.
"""

from collections.abc import Iterator

from flywheel.records import Record

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
CACHE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""Of vLLM's newer engine and of its older one; a share from 0 to 1, whatever the name says."""


class Load(Record, frozen=True):
    running: int
    """Requests that are computed."""
    waiting: int
    """Requests in the queue."""
    cache_use: float | None
    """Share of the KV cache in use, 0 to 1; None = it does not say."""


def read_load(text: str) -> Load | None:
    """From Prometheus' text form, over all of its engines; None = it does not speak of requests.

    Raises:
        ValueError: a line of ours without a number.
    """
    running, waiting = list(_values(text, RUNNING)), list(_values(text, WAITING))
    if not running or not waiting:
        return None
    cache = [value for name in CACHE for value in _values(text, name)]
    return Load(int(sum(running)), int(sum(waiting)), max(cache, default=None))


def load_text(load: Load) -> str:
    """What `read_load` reads."""
    values = {RUNNING: load.running, WAITING: load.waiting, CACHE[0]: load.cache_use}
    return "".join(
        f'# TYPE {name} gauge\n{name}{{model_name="base"}} {value}\n'
        for name, value in values.items()
        if value is not None
    )


def _values(text: str, name: str) -> Iterator[float]:
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")):
            yield float(line.rpartition(" ")[2])
