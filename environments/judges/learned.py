"""A judge that was trained to judge (`environments.judges.verifier`), at any OpenAI-compatible URL.

Enter: a model call with its answer, or texts. Leaves: how surely the answer is good, or null with
the reason. One token is asked for, so nothing is kept and no budget is spent; what it may do (gate,
or inform only) follows from its calibrations, as with every judge. Invariant: it reads what it was
trained on, the whole conversation; of plain texts it makes the nearest one to that.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from environments.judges.asking import NO_VERDICT, session
from environments.judges.contract import Judged
from environments.judges.endpoint import Endpoint, Unanswered
from environments.judges.injection import suspicion
from environments.judges.judge import TOGETHER, ModelJudge
from environments.judges.verifier import QUESTION, asked, body, score
from flywheel.chat import to_chat
from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Image, Message, ModelCall, say

if TYPE_CHECKING:
    from aiohttp import ClientSession


@dataclass(frozen=True)
class LearnedJudge(ModelJudge):
    address: str | None = None
    """Where it is reached; None = at the section's url."""

    async def score(
        self, rubric: str, answer: str, *, context: str = "", images: Sequence[Image] = ()
    ) -> Judged:
        before = (say("user", context),) if context else ()
        return await self._judged_alone(before, say("assistant", answer), ())

    async def score_call(self, call: ModelCall, *, rubric: str = "") -> Judged:
        if not call.choices:
            return self._null("the call has no answer")
        return await self._judged_alone(call.input, call.choices[0].message, call.tools or ())

    async def compare(self, rubric: str, first: str, second: str, *, context: str = "") -> Judged:
        one, other = await asyncio.gather(
            self.score(rubric, first, context=context), self.score(rubric, second, context=context)
        )
        suspect = one.suspect or other.suspect
        if one.value is None or other.value is None:
            silent = one if one.value is None else other
            return self._null(silent.reason)._replace(suspect=suspect)
        value = 0.5 if one.value == other.value else float(one.value > other.value)
        reason = f"p({one.value:.3f}) against p({other.value:.3f})"
        return Judged(value, reason, (value,), 0.0, one.digest, suspect=suspect)

    def digest_of(self, kind: Literal["score", "compare"], rubric: str) -> str:
        """The same for all kinds and rubrics: it has one question."""
        return digest("verifier", QUESTION, self.section.url, self.section.model)

    @property
    def limit_s(self) -> float:
        return ceil(2 * TOGETHER / self.section.at_once) * self.section.timeout_s + 5

    def spent(self) -> str:
        return ""

    async def _judged_alone(
        self, before: Sequence[Message], answer: Message, tools: Sequence[dict[str, Any]]
    ) -> Judged:
        async with session() as opened:
            return await self.judge(opened, before, answer, tools)

    async def judge(
        self,
        opened: "ClientSession",
        before: Sequence[Message],
        answer: Message,
        tools: Sequence[dict[str, Any]] = (),
    ) -> Judged:
        """One verdict over connections that the caller holds."""
        try:
            request = body(self.section.model, to_chat(asked(before, answer)))
        except BadRecord as error:
            return self._null(error.reason)
        request |= {"tools": list(tools)} if tools else {}
        if self.section.url == "home" and self.address is None:
            return self._null(f"{NO_VERDICT}no server runs in this home: `flywheel serve`")
        endpoint = Endpoint(self.address or self.section.url, self.key, self.ledger)
        try:
            reply = await endpoint.ask(opened, request, time.monotonic() + self.section.timeout_s)
        except Unanswered as error:
            return self._null(f"{NO_VERDICT}{error}")
        found = score(reply.likeliest)
        if isinstance(found, str):
            return self._null(found)
        suspect = suspicion({"answer": answer.text})
        own = self.digest_of("score", "")
        return Judged(found, f"p(good) = {found:.3f}", (found,), 0.0, own, suspect=suspect)

    def _null(self, reason: str) -> Judged:
        return Judged(None, reason, cost_usd=0.0, digest=self.digest_of("score", ""))
