"""One question to the judge: from the ledger if it was asked before, else within the day's budget.

Enter: a question and the number of the vote. Leaves: a Vote, null with the reason where there is no
verdict. Invariants: no call is made that the budget has no room for, a reply that does not fit is
asked to be mended once, and only verdicts are kept: what could not be had is asked again.
"""

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from environments.judges.endpoint import Endpoint, Reply, Unanswered
from environments.judges.ledger import Bounds, Hold, Ledger
from environments.judges.questions import VERSION, Question, messages, repair, schema
from environments.judges.verdicts import Fits, read
from flywheel.ids import digest, seed_of
from flywheel.judge_section import JudgeSection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import ClientSession

Said = list[dict[str, Any]]
"""Messages as the endpoint takes them."""
_PICTURE_TOKENS = 2000
"""Reserved for a picture: endpoints count it differently."""
_TEMPLATE_TOKENS = 64
"""Reserved for what a chat template puts around the messages."""
NO_VERDICT = "no verdict: "
"""Begins why the endpoint, or the budget, gave none."""
_NO_SCHEMA = {400, 404, 415, 422, 501}
"""What endpoints say to a `response_format` that they do not take; other mistakes are said so too,
which is why it is remembered only where the same question without it was answered."""


class _Loop(NamedTuple):
    """What all questions of an event loop share."""

    turn: asyncio.Semaphore
    asked: "WeakValueDictionary[str, asyncio.Lock]"
    """By key, while it is asked."""


_loops: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop]" = WeakKeyDictionary()


class Vote(NamedTuple):
    value: float | None
    reason: str
    cost_usd: float | None = 0.0


class Asker(NamedTuple):
    section: JudgeSection
    project: str
    ledger: Ledger | None
    key: str | None

    @property
    def digest(self) -> str:
        """Of all that decides what one question is answered, the question apart."""
        names = {"url", "model", "scale", "temperature", "max_tokens", "vision", "longest"}
        return digest(VERSION, self.section.model_dump(mode="json", include=names))

    async def ask(self, session: "ClientSession", question: Question, number: int) -> Vote:
        key, loop = digest(self.digest, question.key, number), _loop(self.section.at_once)
        lock = loop.asked.setdefault(key, asyncio.Lock())
        async with lock:  # equal questions under way together are asked once
            body = self.ledger.get(key) if self.ledger else None
            kept = msgspec.msgpack.decode(body, type=Vote) if body is not None else None
            if kept is not None and kept.value is not None:
                return kept._replace(cost_usd=0.0)
            async with loop.turn:
                vote = await self._fresh(session, question, number)
            if self.ledger and vote.value is not None:
                self.ledger.put(key, msgspec.msgpack.encode(vote))
            return vote

    async def _fresh(self, session: "ClientSession", question: Question, number: int) -> Vote:
        said, why, costs = messages(question), "", list[float | None]()
        for _ in range(2):
            try:
                reply, cost = await self._paid(session, question, said, number)
            except Unanswered as error:
                costs.append(None if error.charged else 0.0)
                return Vote(None, f"{NO_VERDICT}{error}", total(costs))
            costs.append(cost)
            if reply.refusal:
                why = f"the judge refuses: {reply.refusal[:300]}"
                break
            found = read(question, reply.text)
            if isinstance(found, Fits):
                return Vote(found.value, found.reason, total(costs))
            cut = f"cut at {self.section.max_tokens} tokens, " if reply.cut else ""
            why = f"the verdict does not fit: {cut}{found}"
            said = [*said, *repair(question, reply.text, found)]
        return Vote(None, why, total(costs))

    async def _paid(
        self, session: "ClientSession", question: Question, said: Said, number: int
    ) -> tuple[Reply, float | None]:
        """A reply and its cost: reserved before, settled after."""
        hold = self._reserved(said, len(question.images))
        try:
            reply = await self._sent(session, question, said, number)
        except BaseException as error:
            if hold and self.ledger:
                if isinstance(error, Unanswered) and not error.charged:
                    self.ledger.release(hold)
                else:  # it may have been answered, and paid for
                    self.ledger.settle(hold, None, None)
            raise
        cost, tokens = None, None
        if reply.prompt_tokens is not None and reply.completion_tokens is not None:
            tokens = reply.prompt_tokens + reply.completion_tokens
            cost = self._price(reply.prompt_tokens, reply.completion_tokens)
        if hold and self.ledger:
            self.ledger.settle(hold, cost, tokens)
        return reply, cost

    def _reserved(self, said: Said, pictures: int) -> Hold | None:
        """
        Raises:
            Unanswered: today's budget has no room for it.
        """
        if self.ledger is None:
            return None
        prompt = _most_tokens(said) + pictures * _PICTURE_TOKENS
        most = self.section.max_tokens
        section = self.section
        bounds = Bounds(section.budget_usd, section.budget_tokens, section.budget_calls)
        lasts_s = 2 * section.timeout_s + 30
        held = self.ledger.reserve(
            self.project, bounds, self._price(prompt, most) or 0.0, prompt + most, lasts_s
        )
        if isinstance(held, str):
            raise Unanswered(f"the judge's budget of {held} is spent")
        return held

    async def _sent(
        self, session: "ClientSession", question: Question, said: Said, number: int
    ) -> Reply:
        """With a schema where the endpoint takes one."""
        deadline = time.monotonic() + self.section.timeout_s
        endpoint = Endpoint(self.section.url, self.key, self.ledger)
        body: dict[str, Any] = {
            "model": self.section.model,
            "messages": said,
            "temperature": self.section.temperature,
            "max_tokens": self.section.max_tokens,
            "seed": seed_of(question.key, number),
        }
        fact = f"no schema {self.section.url} {self.section.model}"
        if not self.section.structured or (self.ledger and self.ledger.facts(fact)[0]):
            return await endpoint.ask(session, body, deadline)
        try:
            asked = {**body, "response_format": schema(question)}
            return await endpoint.ask(session, asked, deadline)
        except Unanswered as error:
            if error.status not in _NO_SCHEMA:
                raise
        reply = await endpoint.ask(session, body, deadline)
        if self.ledger:
            self.ledger.note(fact, 1.0)
        return reply

    def _price(self, prompt: int, completion: int) -> float | None:
        """Dollars; None = a price is not known."""
        section = self.section
        if section.price_in is None or section.price_out is None:
            return None
        return (prompt * section.price_in + completion * section.price_out) / 1e6


def total(costs: list[float | None]) -> float | None:
    """None = one of them is not known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _most_tokens(said: Said) -> int:
    """No tokenizer makes more tokens of a text than it has bytes."""
    texts = (
        part.get("text", "")
        for message in said
        for part in (
            message["content"]
            if isinstance(message["content"], list)
            else [{"text": message["content"]}]
        )
    )
    return _TEMPLATE_TOKENS + sum(len(text.encode("utf-8", "replace")) for text in texts)


def _loop(at_once: int) -> _Loop:
    made = _Loop(asyncio.Semaphore(at_once), WeakValueDictionary())
    return _loops.setdefault(asyncio.get_running_loop(), made)


@asynccontextmanager
async def session() -> "AsyncIterator[ClientSession]":
    """Connections for one verdict: none outlives its event loop or crosses a fork."""
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as opened:
        yield opened
