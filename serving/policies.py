"""Which weights answer the next call, and how many calls those before them still answer.

Enter: versions, as they are published. Leaves: for the time of one call, the version that answers
it. Invariants: a call keeps the version that it began with to its end; what answers a call is not
free to be unloaded. Used from one event loop alone.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple


class Policy(NamedTuple):
    """One version of a model's weights, as an engine serves it."""

    version: int
    """Optimizer steps; 0 = what the run started from."""
    model: str
    """The engine's name for it: of these weights alone, never of others."""
    name: str
    """What records bear."""


def name_of(run: str, version: int) -> str:
    """The name that records of a run bear for a version of its weights."""
    return f"{run}-v{version}"


def version_of(name: str) -> int | None:
    """None = no name of `name_of`'s."""
    found = re.search(r"-v(\d+)$", name)
    return int(found[1]) if found else None


class Policies:
    """`use` is around each call, `switch` between two of them."""

    def __init__(self, first: Policy) -> None:
        self._now = first
        self._using: Counter[str] = Counter()
        self._open, self._none = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._none.set()

    @property
    def now(self) -> Policy:
        """What answers a call that begins now."""
        return self._now

    def switch(self, policy: Policy) -> None:
        self._now = policy

    @property
    def halting(self) -> bool:
        """Whether no call may begin now."""
        return not self._open.is_set()

    def in_use(self, model: str) -> int:
        """Calls under way that the engine's `model` answers."""
        return self._using[model]

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Policy]:
        """What answers this call, from its beginning to its end. Waits while none may begin."""
        await self._open.wait()
        policy = self._now
        self._using[policy.model] += 1
        self._none.clear()
        try:
            yield policy
        finally:
            self._using[policy.model] -= 1
            if not self._using.total():
                self._none.set()

    @contextlib.asynccontextmanager
    async def halted(self) -> AsyncIterator[None]:
        """Lets no call begin, and is entered when none is under way."""
        self._open.clear()
        try:
            await self._none.wait()
            yield
        finally:
            self._open.set()
