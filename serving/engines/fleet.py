"""Several equal engines as one: the same base model and the same adapters in each.

Enter engines, ours or somebody else's; leaves what the server keeps and promotions load into. The
gateway asks those in `urls`, and passes over any that cannot be reached. Invariant: an engine is
among `urls` only while it lives and has what it must serve loaded and checked; one that is away is
waited for by nobody, and gets everything as it comes back.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from flywheel.errors import EngineError
from serving.engines.client import EngineClient
from serving.engines.contract import Generated
from serving.engines.reach import Access, Replica
from serving.engines.remote import RemoteVllm
from serving.engines.supervised import Supervised

T = TypeVar("T")
One = Supervised | RemoteVllm
_AGAIN_S = 5.0
_log = logging.getLogger("flywheel.engine")


class Fleet:
    """Implements `contract.Engine` and `keeper.EngineChild`."""

    def __init__(self, engines: Sequence[One], *, again_s: float = _AGAIN_S) -> None:
        self.engines, self._again_s = tuple(engines), again_s
        self._stopping = threading.Event()
        self._late: threading.Thread | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """Of those that serve now."""
        return tuple(one.url for one in self.engines if one.alive and one.settled)

    @property
    def url(self) -> str:
        """Of one that serves, as long as there is one."""
        return self._one.url

    @property
    def access(self) -> Access:
        replicas = tuple(Replica(url=e.url, copies=e.access.copies) for e in self.engines)
        return msgspec.structs.replace(self._one.access, replicas=replicas)

    @property
    def _one(self) -> One:
        serving = (one for one in self.engines if one.alive and one.settled)
        return next(serving, self.engines[0])

    @property
    def alive(self) -> bool:
        return any(one.alive for one in self.engines)

    @property
    def settled(self) -> bool:
        return bool(self.urls)

    @property
    def restarts(self) -> int:
        """Grows once each of them was started again: as long as another one serves, the restart of
        one interrupts nobody."""
        return min(one.restarts for one in self.engines)

    @property
    def last_error(self) -> str | None:
        said = [f"{one.url}: {one.last_error}" for one in self.engines if one.last_error]
        return "; ".join(said) or None

    @property
    def lacking(self) -> Mapping[str, str]:
        """What none of those that live serves."""
        live = [one.lacking for one in self.engines if one.alive]
        everywhere = set[str]().union(*live).intersection(*live)
        return {name: live[0][name] for name in everywhere}

    def client(self, *, timeout_s: float = 600.0) -> EngineClient:
        return EngineClient(self.url, timeout_s=timeout_s, access=self.access)

    def start(self) -> None:
        """Returns when one serves at least, and each was tried; the rest are tried again.

        Raises:
            EngineError: none does.
            UsageError: one is not what a turn needs.
        """
        self._stopping.clear()
        failed = [one for one in self._all(self._started) if one is not None]
        errors = [error for _, error in failed]
        for error in errors:
            if not isinstance(error, EngineError):
                self.stop()
                raise error
        if len(failed) == len(self.engines):
            self.stop()
            raise errors[0]
        if failed:
            work = [one for one, _ in failed]
            self._late = threading.Thread(target=self._start_late, args=(work,), daemon=True)
            self._late.start()

    def stop(self) -> None:
        self._stopping.set()
        self._all(lambda one: one.stop())
        if self._late is not None:
            self._late.join()
            self._late = None

    def revive(self) -> None:
        """Those that live and do not answer."""
        for one in self.engines:
            if one.alive and not one.ready():
                one.revive()

    def ready(self) -> bool:
        return any(one.ready() for one in self.engines if one.alive)

    def load_adapter(self, name: str, folder: Path) -> None:
        self._live(lambda one: one.load_adapter(name, folder))

    def unload_adapter(self, name: str) -> None:
        self._live(lambda one: one.unload_adapter(name))

    def load_weights(self, folder: Path) -> None:
        for one in self.engines:
            one.load_weights(folder)

    def generate(
        self, model: str, prompt_ids: Sequence[int], *, max_tokens: int, **sampling: Any
    ) -> list[Generated]:
        return self._one.generate(model, prompt_ids, max_tokens=max_tokens, **sampling)

    def drain(self) -> None:
        self._live(lambda one: one.drain())

    def _started(self, one: One) -> tuple[One, Exception] | None:
        try:
            one.start()
            return None
        except Exception as error:
            return one, error

    def _start_late(self, left: list[One]) -> None:
        while left and not self._stopping.wait(self._again_s):
            for one in list(left):
                failed = self._started(one)
                if failed is None:
                    left.remove(one)
                    _log.info("the engine at %s is there by now", one.url)
                if self._stopping.is_set():
                    # It may have come up as the others were stopped.
                    one.stop()
                    return

    def _live(self, work: Callable[[One], T]) -> list[T]:
        live = [one for one in self.engines if one.alive]
        if not live:
            raise EngineError(f"none of {len(self.engines)} engines is there")
        return [work(one) for one in live]

    def _all(self, work: Callable[[One], T]) -> list[T]:
        with ThreadPoolExecutor(len(self.engines), thread_name_prefix="fleet") as pool:
            return list(pool.map(work, self.engines))
