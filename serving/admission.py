"""Whose turn it is: requests that were let in wait here for the engine, each project its share.

Enters a caller, a project and what its request may cost; leaves its turn, or a refusal that says
when to come again. Held until its answer has ended.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.keys import Caller
from serving.limits import Limits
from serving.refusal import ApiError


class Admission:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running = 0

    @asynccontextmanager
    async def turn(self, caller: Caller, project: str, tokens: int) -> AsyncIterator[None]:
        """
        Args:
            tokens: the most that the request can cost, prompt and answer.

        Raises:
            ApiError: 429: over a limit of its key or project, or too many wait.
        """
        if self.running >= self.limits.concurrent:
            raise ApiError(
                429, f"{self.running} requests are in work: come again", code="busy", retry_after=1
            )
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
