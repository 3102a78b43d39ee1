"""Whose turn it is: requests that were let in wait here for the engine, each project its share.

Enters a caller, a project and what its request may cost; leaves its turn, or a refusal that says
when to come again. Held until its answer has ended. Limits of a key or a project refuse at once;
what waits, waits for the engine alone, and the project that was served least for its weight goes
first. Invariant: a turn that was given is given back, however its request ends.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from serving.allowance import Allowance, Bound, Over
from serving.fair import FairQueue
from serving.keys import Caller
from serving.limits import Limits
from serving.rates import Left
from serving.refusal import ApiError, Headers
from serving.terms import Terms

_Waiter = asyncio.Future[None]
_RECENT = 0.1
"""Weight of the last request in what a project's requests take of what is reserved for them."""
_SECOND = 10**9
_USUAL_S = 1
"""When to come again where nobody can tell."""


class Turn:
    """One request's, while it is in work."""

    def __init__(self, tokens: int, headers: Headers) -> None:
        self.tokens = tokens
        """What was reserved for it."""
        self.spent: int | None = None
        """What it really took, prompt and answer; None = not known: what was reserved stands."""
        self.waited = False
        self.headers = headers
        """How much its key and project have left, as OpenAI's clients read it."""


class Admission:
    def __init__(self, limits: Limits, terms: Terms, allowance: Allowance) -> None:
        self.limits, self.terms, self.allowance = limits, terms, allowance
        self.running = 0
        self._queue: FairQueue[tuple[_Waiter, str, float]] = FairQueue(allowance)
        self._taken: dict[str, float] = {}
        """By project: what its requests took lately, of what was reserved for them."""

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def turn(
        self,
        caller: Caller,
        project: str,
        tokens: int,
        while_waiting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> AsyncIterator[Turn]:
        """
        Args:
            tokens: what the request can be expected to cost, prompt and answer.
            while_waiting: is entered only where it has to wait: what notices that its client left.

        Raises:
            ApiError: 429: over a limit of its key or project, or too many wait.
        """
        bounds = self._bounds(caller, project)
        over = self.allowance.take(bounds, tokens) if bounds else None
        if over is not None:
            raise _refusal(over, self._headers(bounds))
        turn = Turn(tokens, self._headers(bounds))
        weight = self.terms.of(project).limits.weight
        expected = tokens * self._taken.get(project, 1.0)
        self._queue.come(project)
        try:
            await self._wait(project, expected, while_waiting, turn)
            try:
                yield turn
            finally:
                self.running -= 1
                if turn.spent is not None:
                    self._queue.charge(project, turn.spent - expected, weight)
                    self._learn(project, turn.spent / max(1, tokens))
        finally:
            self._queue.leave(project)
            if bounds:
                self.allowance.settle(bounds, tokens, tokens if turn.spent is None else turn.spent)
            self._next()

    async def _wait(
        self,
        project: str,
        tokens: float,
        while_waiting: Callable[[], AbstractAsyncContextManager[None]],
        turn: Turn,
    ) -> None:
        """Returns once the request is in work, and counted as that."""
        if self.running < self.limits.concurrent and not self._queue:
            self._begin(project, tokens)
            return
        try:
            self._may_wait(project)
            turn.waited = True
            waiter: _Waiter = asyncio.get_running_loop().create_future()
            item = (waiter, project, tokens)
            self._queue.push(project, item)
            try:
                async with while_waiting(), asyncio.timeout(self.limits.silence_s):
                    await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    # Its turn came as it left: the next one has it.
                    self.running -= 1
                    self._queue.charge(project, -tokens, self.terms.of(project).limits.weight)
                else:
                    self._queue.withdraw(project, item)
                raise
        except TimeoutError as error:
            turn.spent = 0
            raise ApiError(
                503,
                f"no turn at the engine within {self.limits.silence_s:g} s: come again",
                code="busy",
                retry_after=_USUAL_S,
            ) from error
        except BaseException:
            turn.spent = 0
            raise

    def _may_wait(self, project: str) -> None:
        waiting, room = self._queue.waiting(project), self.terms.of(project).limits.queue
        if waiting >= room:
            raise ApiError(
                429,
                f"{self.running} requests are in work and {waiting} of {project} wait: come again",
                code="busy",
                retry_after=_USUAL_S,
            )

    def _learn(self, project: str, taken: float) -> None:
        before = self._taken.get(project, 1.0)
        self._taken[project] = before + _RECENT * (taken - before)

    def _begin(self, project: str, tokens: float) -> None:
        self.running += 1
        self._queue.charge(project, tokens, self.terms.of(project).limits.weight)

    def _next(self) -> None:
        while self.running < self.limits.concurrent:
            item = self._queue.pop()
            if item is None:
                return
            waiter, project, tokens = item
            if not waiter.done():  # else it is leaving
                self._begin(project, tokens)
                waiter.set_result(None)

    def _bounds(self, caller: Caller, project: str) -> list[Bound]:
        """Those of the key and of the project that bound anything."""
        of = self.terms.of(project).limits
        both = (
            Bound(
                account=f"key {caller.name}",
                requests=caller.requests_per_minute,
                tokens=caller.tokens_per_minute,
                concurrent=caller.concurrent,
            ),
            Bound(
                account=f"project {project}",
                requests=of.requests_per_minute,
                tokens=of.tokens_per_minute,
                concurrent=of.concurrent,
            ),
        )
        return [one for one in both if (one.requests, one.tokens, one.concurrent) != (None,) * 3]

    def _headers(self, bounds: list[Bound]) -> Headers:
        if not bounds:
            return []
        room = self.allowance.room(bounds)
        return [*_said("requests", room.requests), *_said("tokens", room.tokens)]


def _said(what: str, left: Left | None) -> Headers:
    if left is None:
        return []
    return [
        (f"x-ratelimit-limit-{what}".encode(), b"%d" % left.limit),
        (f"x-ratelimit-remaining-{what}".encode(), b"%d" % left.remaining),
        (f"x-ratelimit-reset-{what}".encode(), _stretch(left.reset_ns).encode()),
    ]


def _stretch(ns: int) -> str:
    """As OpenAI writes it: 850ms, 12s, 1m30s."""
    if ns < _SECOND:
        return f"{ns // 10**6}ms"
    minutes, seconds = divmod(math.ceil(ns / _SECOND), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _refusal(over: Over, headers: Headers) -> ApiError:
    bound = over.bound
    limits = {"requests": bound.requests, "tokens": bound.tokens, "concurrent": bound.concurrent}
    words = "requests at one time" if over.what == "concurrent" else f"{over.what} a minute"
    return ApiError(
        429,
        f"the {bound.account} may have {limits[over.what]} {words}: come again",
        code="rate_limit_exceeded",
        retry_after=max(_USUAL_S, math.ceil(over.wait_ns / _SECOND)),
        more=headers,
    )
