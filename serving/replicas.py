"""Which of several equal engines gets a request: the one that has its prefix cached, unless that
one is busier than its share.

Rendezvous hashing (Thaler and Ravishankar 1998) orders the replicas for each prefix: one that goes
away moves only what it had. Bounded load (Mirrokni, Thorup and Zadimoghaddam 2018): none may have
more than ceil(c * (requests + 1) / replicas) in work, c = 1.25. Invariant: one that could not be
reached gets nothing until its pause is over, as long as another one can be asked.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b

from flywheel.errors import EngineError

_OVER = 1.25
"""c: how far above the mean a replica's load may be before its prefixes are answered elsewhere."""
_PAUSE_S, _LONGEST_S = 0.5, 10.0


class Replicas:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loads: dict[str, int] = {}
        self._lost: dict[str, tuple[float, float]] = {}
        """Until when, and for how long: of those that could not be reached."""
        self.urls: tuple[str, ...] = ()

    def become(self, urls: Sequence[str]) -> None:
        """Those that live now. One that stays keeps its load; one that is new again is tried."""
        for new in set(urls) - set(self.urls):
            self._lost.pop(new, None)
        self.urls = tuple(urls)

    def take(self, prefix: bytes = b"", but: Collection[str] = ()) -> str:
        """One more request for the replica that is returned; `give_back` ends it.

        Raises:
            EngineError: there is none.
        """
        rest = [url for url in self.urls if url not in but]
        if not rest:
            raise EngineError("no engine is there to ask")
        taken = rest[0] if len(rest) == 1 else self._best(rest, prefix)
        self._loads[taken] = self._loads.get(taken, 0) + 1
        return taken

    def give_back(self, url: str) -> None:
        left = self._loads.get(url, 0) - 1
        if left > 0:
            self._loads[url] = left
        else:
            self._loads.pop(url, None)

    def lost(self, url: str) -> None:
        """It could not be reached."""
        pause = min(self._lost.get(url, (0.0, _PAUSE_S / 2))[1] * 2, _LONGEST_S)
        self._lost[url] = (self._clock() + pause, pause)

    def reached(self, url: str) -> None:
        if self._lost:
            self._lost.pop(url, None)

    def _best(self, urls: Sequence[str], prefix: bytes) -> str:
        now = self._clock()
        there = [url for url in urls if self._lost.get(url, (0.0, 0.0))[0] <= now] or urls
        loads = {url: self._loads.get(url, 0) for url in there}
        room = math.ceil(_OVER * (sum(loads.values()) + 1) / len(there))
        if not prefix:
            return min(there, key=lambda url: loads[url])
        ordered = sorted(there, key=lambda url: _score(prefix, url), reverse=True)
        return next((url for url in ordered if loads[url] < room), ordered[0])


def _score(prefix: bytes, url: str) -> bytes:
    return blake2b(prefix, digest_size=8, key=url.encode()[:64]).digest()
