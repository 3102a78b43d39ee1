"""Circuit breaker of one deployment: who keeps failing is left alone for a while, then tried once.

Closed, it counts; open, it says no until its pause is over; then one request probes (Nygard,
Release It!, 2007). Enters how each attempt ended; leaves whether another may be made. Invariant: of
an open one at most one probe is under way. It never refuses anybody: where nobody else is left,
the caller asks all the same.
"""

import random
import time
from collections import deque
from collections.abc import Callable

_IN_A_ROW = 5
"""Failures that open it."""
_WINDOW, _WINDOW_S = 20, 60.0
"""Attempts of the last minute of which half may fail, once there are as many."""
_PAUSE_S, _LONGEST_S = 2.0, 60.0
_SPREAD = 0.2
"""By which a pause differs, so that many gateways do not probe at one moment."""


class Breaker:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[tuple[float, bool]] = deque(maxlen=_WINDOW)
        self._row = 0
        self._until: float | None = None
        self._pause_s = _PAUSE_S
        self._probing = False

    @property
    def open(self) -> bool:
        return self._until is not None

    def may(self) -> bool:
        """Whether one more attempt may be made now."""
        return self._until is None or (not self._probing and self._clock() >= self._until)

    def begin(self) -> None:
        """An attempt is made. One of `passed`, `failed` and `left` follows."""
        self._probing = self._until is not None

    def passed(self) -> None:
        self._note(True)
        self._row, self._until, self._probing = 0, None, False

    def failed(self) -> None:
        self._note(False)
        self._row += 1
        if self._until is not None:
            if self._probing:
                self._pause_s = min(self._pause_s * 2, _LONGEST_S)
                self._open()
        elif self._row >= _IN_A_ROW or self._half_failed():
            self._pause_s = _PAUSE_S
            self._open()

    def left(self) -> None:
        """The client hung up: nothing was learnt."""
        self._probing = False

    def _open(self) -> None:
        spread = 1 + random.uniform(-_SPREAD, _SPREAD)
        self._until, self._probing = self._clock() + self._pause_s * spread, False
        self._ends.clear()

    def _note(self, passed: bool) -> None:
        self._ends.append((self._clock(), passed))

    def _half_failed(self) -> bool:
        since = self._clock() - _WINDOW_S
        recent = [passed for at, passed in self._ends if at >= since]
        return len(recent) == _WINDOW and recent.count(False) * 2 >= _WINDOW


class Breakers:
    """One for each deployment, by its name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_name: dict[str, Breaker] = {}

    def of(self, name: str) -> Breaker:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = Breaker(self._clock)
        return found

    def open(self) -> list[str]:
        return sorted(name for name, one in self._by_name.items() if one.open)
