"""One question to an OpenAI-compatible endpoint, with retries for infrastructure only.

Enter: a request's body and a deadline. Leaves: the reply, or `Unanswered` with the reason.
Invariants: a rate limit that the endpoint states is waited for by every process of the home, one
that fails again and again is left alone for a while, a reply has a largest size, and nothing here
outlasts the deadline.
"""

import asyncio
import email.utils
import json
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.endpoint import bounded, words
from environments.judges.ledger import Ledger
from environments.judges.quoting import whole
from flywheel.errors import FlywheelError
from flywheel.ids import seed_of
from flywheel.masking import masked

if TYPE_CHECKING:
    from aiohttp import ClientSession

RETRIES = 5
LARGEST_REPLY = 1 << 20
_MOST_TOKENS = 10**9
"""Of one call; more is no count."""
_LONGEST_WAIT_S = 3600.0
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_FIRST_PAUSE_S = 0.25
DOWN_AFTER, DOWN_S = 5, 60.0
"""After so many questions in a row that got no answer, none is asked for so long."""


class Unanswered(FlywheelError):
    """No reply that could be read. `charged`: whether the call may have been paid for."""

    def __init__(self, reason: str, *, charged: bool = False, status: int | None = None) -> None:
        super().__init__(reason)
        self.charged, self.status = charged, status


class Reply(NamedTuple):
    text: str
    refusal: str
    """What it said instead of an answer; "" = it did not refuse."""
    cut: bool
    """It ran into max_tokens."""
    prompt_tokens: int | None
    """None = the endpoint did not say."""
    completion_tokens: int | None
    likeliest: tuple[tuple[str, float], ...] = ()
    """Of its first token: texts and log-probabilities, where they were asked for."""


class Endpoint(NamedTuple):
    url: str
    key: str | None
    ledger: Ledger | None

    async def ask(self, session: "ClientSession", body: dict[str, Any], deadline: float) -> Reply:
        """
        Raises:
            Unanswered: none in time, or the endpoint says no.
        """
        failed = self._failures()
        try:
            reply = await self._tried(session, body, deadline)
        except Unanswered as error:
            if self.ledger and error.status in _AGAIN:
                self.ledger.note(f"failed {self.url}", self._failures(ask=True) + 1)
                self.ledger.note(f"down {self.url}", self.ledger.clock() + DOWN_S)
            raise
        if self.ledger and failed:
            self.ledger.note(f"failed {self.url}", 0)
        return reply

    async def _tried(
        self, session: "ClientSession", body: dict[str, Any], deadline: float
    ) -> Reply:
        chance = random.Random(seed_of(body))
        for attempt in range(RETRIES + 1):
            await self._wait_for_limit(deadline)
            try:
                async with asyncio.timeout_at(_loop_time(deadline)):
                    return await self._once(session, body)
            except TimeoutError as error:
                raise Unanswered("no answer in time", charged=True, status=408) from error
            except Unanswered as error:
                if error.status not in _AGAIN or error.status == 408 or attempt == RETRIES:
                    raise
                pause = _FIRST_PAUSE_S * 2**attempt * (0.5 + chance.random())
                if time.monotonic() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _once(self, session: "ClientSession", body: dict[str, Any]) -> Reply:
        import aiohttp

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        address = self.url.rstrip("/") + "/chat/completions"
        try:
            async with session.post(
                address, json=body, headers=headers, allow_redirects=False
            ) as response:
                said = await bounded(response, LARGEST_REPLY)
                if said is None:
                    reason = f"its reply has more than {LARGEST_REPLY} bytes"
                    raise Unanswered(reason, charged=True)
                data = masked(said, self.key)
                if response.status == 429:
                    self._note_limit(response.headers.get("Retry-After"))
                if response.status != 200:
                    message, _ = words(data)
                    raise Unanswered(f"HTTP {response.status} {message}", status=response.status)
        except aiohttp.ClientConnectorError as error:
            raise Unanswered(f"no connection to {self.url}: {error}", status=503) from error
        except aiohttp.ClientError as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise Unanswered(reason, charged=True, status=503) from error
        return _reply(data)

    def _failures(self, *, ask: bool = False) -> float:
        """How many questions in a row got no answer.

        Raises:
            Unanswered: so many that it is left alone now; never where one only asks.
        """
        if self.ledger is None:
            return 0
        failed, until = self.ledger.facts(f"failed {self.url}", f"down {self.url}")
        if not ask and failed >= DOWN_AFTER and 0 < until - self.ledger.clock() <= DOWN_S:
            raise Unanswered(f"{self.url} failed {failed:.0f} times in a row, and is left alone")
        return failed

    def _note_limit(self, said: str | None) -> None:
        wait_s = seconds(said)
        if wait_s and self.ledger:
            self.ledger.note(f"wait {self.url}", self.ledger.clock() + wait_s)

    async def _wait_for_limit(self, deadline: float) -> None:
        if self.ledger is None:
            return
        wait_s = self.ledger.facts(f"wait {self.url}")[0] - self.ledger.clock()
        if not 0 < wait_s <= _LONGEST_WAIT_S:  # longer: it was noted before the clock was set back
            return
        if time.monotonic() + wait_s >= deadline:
            raise Unanswered(f"its rate limit ends in {wait_s:.0f} s")
        await asyncio.sleep(wait_s)


def _loop_time(deadline: float) -> float:
    return asyncio.get_running_loop().time() + deadline - time.monotonic()


def _reply(data: bytes) -> Reply:
    try:
        found = json.loads(data)
        choice = found["choices"][0]
        said, usage = choice["message"], found.get("usage") or {}
        text, refusal = _text(said.get("content")), _text(said.get("refusal"))
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        finish = choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Unanswered("its reply is no chat completion", charged=True) from error
    if finish == "content_filter" and not refusal:
        refusal = "its content filter"
    # Zeros beside an answer are no count: the endpoint does not count.
    known = all(type(one) is int and 0 <= one < _MOST_TOKENS for one in counts) and any(counts)
    prompt, completion = counts if known else (None, None)
    return Reply(text, refusal, finish == "length", prompt, completion, _likeliest(choice))


def _likeliest(choice: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """() = the endpoint gives none."""
    try:
        first = choice["logprobs"]["content"][0]["top_logprobs"]
        return tuple((str(one["token"]), float(one["logprob"])) for one in first)
    except (LookupError, TypeError, ValueError):
        return ()


def _text(content: Any) -> str:
    """Of a string, or of parts."""
    if isinstance(content, list):
        content = "".join(str(one.get("text", "")) for one in content)
    if not isinstance(content, str | None):
        raise TypeError(f"content is a {type(content).__name__}")
    return whole(content or "")


def seconds(said: str | None) -> float:
    """Of a Retry-After: a number, or a date."""
    if not said:
        return 0.0
    try:
        wait_s = float(said)
    except ValueError:
        try:
            until = email.utils.parsedate_to_datetime(said)
        except ValueError:
            return 0.0
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        wait_s = (until - datetime.now(UTC)).total_seconds()
    return max(0.0, min(wait_s, _LONGEST_WAIT_S))
