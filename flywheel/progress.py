"""Progress of long work: whoever works reports, whoever shows it listens. Nobody passes callbacks.

A listener gets (step, done, total, note); total None = not known.
"""

import logging
from collections.abc import Callable

Listener = Callable[[str, int, int | None, str], None]
_listeners: list[Listener] = []
_log = logging.getLogger("flywheel.progress")


def listen(listener: Listener) -> Callable[[], None]:
    """Adds a listener; returns what removes it."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def report(step: str, done: int, total: int | None = None, note: str = "") -> None:
    _log.debug("%s %s/%s %s", step, done, total, note)
    for listener in list(_listeners):
        listener(step, done, total, note)
