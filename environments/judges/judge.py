"""A model as judge, over any OpenAI-compatible endpoint.

Enter: a rubric and judged text. Leaves: a verdict of n votes, or null with the reason. Invariants:
a pair is asked in both orders, what was asked before is not asked again, and the object holds no
connection: it can be pickled, and used in a forked child.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from environments.judges.asking import Asker, Vote, session, total
from environments.judges.contract import Judged
from environments.judges.injection import suspicion
from environments.judges.ledger import Ledger
from environments.judges.questions import PLAIN, Question, shown
from environments.judges.quoting import shortened, whole
from environments.judges.standing import looked_up
from environments.judges.verdicts import Fits, combined
from flywheel.errors import MissingPart
from flywheel.home import Home
from flywheel.ids import canonical, digest
from flywheel.judge_section import JudgeSection
from flywheel.masking import why_no_key
from flywheel.records import Image, Message, ModelCall, Text
from flywheel.settings import secret

if TYPE_CHECKING:
    from aiohttp import ClientSession

TOGETHER = 32
"""Verdicts that a grading child waits for together (`environments.isolated`)."""


@dataclass(frozen=True)
class ModelJudge:
    section: JudgeSection
    project: str = ""
    """Whose budget it spends."""
    ledger: Ledger | None = None
    """None = nothing is kept, and no budget is."""
    key: str | None = field(default=None, repr=False)
    standings: Mapping[str, str] = field(default_factory=dict)
    """Of calibrated judges, by digest: why its verdicts may only inform; "" = they may gate."""
    bytes_of: Callable[[str], bytes] | None = None
    """Gives the bytes of pictures that are known by digest."""

    async def score(
        self, rubric: str, answer: str, *, context: str = "", images: Sequence[Image] = ()
    ) -> Judged:
        """`rubric` "" = the project's."""
        return await self._judged("score", rubric, {"answer": whole(answer)}, context, images)

    async def score_call(self, call: ModelCall, *, rubric: str = "") -> Judged:
        """The prompt is its context; what the answer calls is shown as JSON."""
        context = "\n\n".join(f"{one.role}: {_shown(one)}" for one in call.input)
        answer = _shown(call.choices[0].message) if call.choices else ""
        return await self.score(rubric, answer, context=context)

    async def compare(self, rubric: str, first: str, second: str, *, context: str = "") -> Judged:
        parts = {"first answer": whole(first), "second answer": whole(second)}
        return await self._judged("compare", rubric, parts, context, ())

    def only_informs(self, digest: str) -> str:
        """Why verdicts of this digest may inform but not gate; "" = they may gate."""
        return looked_up(self.standings, digest)

    @property
    def limit_s(self) -> float:
        """Seconds that one verdict may take among others: all votes, each with its repair."""
        waves = ceil(2 * TOGETHER * self.section.votes / self.section.at_once)
        return waves * 2 * self.section.timeout_s + 5

    def spent(self) -> str:
        """Today, for people."""
        if self.ledger is None:
            return ""
        today = self.ledger.spent(self.project)
        priced = self.section.price_in is not None and self.section.price_out is not None
        return f"{today.calls} calls" + (f", ${today.usd:.4f}" if priced else "") + " today"

    def digest_of(self, kind: Literal["score", "compare"], rubric: str) -> str:
        """Of model, rubric and settings: what calibration is kept by."""
        votes = (self.section.votes, self.section.aggregate)
        return digest(self._asker.digest, kind, self._rubric(rubric), votes)

    def _rubric(self, given: str) -> str:
        return whole(given).strip() or self.section.rubric.strip() or PLAIN

    @property
    def _asker(self) -> Asker:
        return Asker(self.section, self.project, self.ledger, self.key)

    async def _judged(
        self, kind: Literal["score", "compare"], rubric: str, parts: dict[str, str], context: str,
        images: Sequence[Image],
    ) -> Judged:  # fmt: skip
        longest, own = self.section.longest, self.digest_of(kind, rubric)
        for name, text in parts.items():
            if len(text) > longest:
                reason = f"the {name} has {len(text)} characters; this judge is shown {longest}"
                return Judged(None, reason, cost_usd=0.0, digest=own)
        seen, unseen = shown(images, self.section.vision, self.bytes_of)
        given_to = shortened(whole(context), longest)
        question = Question(
            kind, self._rubric(rubric), tuple(parts.values()), given_to, seen, self.section.scale
        )
        async with session() as opened:
            votes = await asyncio.gather(
                *(self._vote(opened, question, number) for number in range(self.section.votes))
            )
        suspect = suspicion({**parts, "context": given_to})
        return self._verdict(votes, unseen)._replace(digest=own, suspect=suspect)

    async def _vote(
        self, opened: "ClientSession", question: Question, number: int
    ) -> tuple[Vote, bool]:
        """One vote, and whether it changed with the order."""
        if question.kind == "score":
            return await self._asker.ask(opened, question, number), False
        turned = question._replace(texts=question.texts[::-1])
        one, other = await asyncio.gather(
            self._asker.ask(opened, question, number), self._asker.ask(opened, turned, number)
        )
        vote = one._replace(cost_usd=total([one.cost_usd, other.cost_usd]))
        if one.value is None or other.value is None:
            reason = one.reason if one.value is None else other.reason
            return vote._replace(value=None, reason=reason), False
        agree = one.value == 1 - other.value
        return vote._replace(value=one.value if agree else 0.5), not agree

    def _verdict(self, votes: Sequence[tuple[Vote, bool]], unseen: str) -> Judged:
        known = [Fits(vote.value, vote.reason) for vote, _ in votes if vote.value is not None]
        missing = [vote.reason for vote, _ in votes if vote.value is None]
        apart = sum(changed for _, changed in votes)
        value, told = None, list[str]()
        if 2 * len(known) > len(votes):
            value, reason = combined(known, self.section.aggregate == "majority")
            told.append(reason)
        given = tuple(one.value for one in known)
        if len(set(given)) > 1:
            told.append("votes " + ", ".join(f"{one:g}" for one in given))
        if apart:
            told.append(f"{apart} of {len(votes)} votes changed with the order")
        if missing:
            many = f"{len(missing)} of {len(votes)} votes missing: " if len(votes) > 1 else ""
            told.append(many + missing[0])
        told.append(unseen)
        return Judged(
            value,
            "; ".join(one for one in told if one),
            votes=given,
            cost_usd=total([vote.cost_usd for vote, _ in votes]),
            disagreements=apart,
        )


def _shown(message: Message) -> str:
    """Text, calls and their results, as a judge reads them."""
    said = [message.text] if message.text else []
    said += [canonical(part).decode() for part in message.parts if not isinstance(part, Text)]
    return "\n".join(said)


def open_judge(
    section: JudgeSection,
    home: Path | None,
    *,
    project: str = "",
    folder: Path | None = None,
    standings: Mapping[str, str] | None = None,
    bytes_of: Callable[[str], bytes] | None = None,
) -> ModelJudge:
    """The judge of a project's section. Nothing is connected or written yet.

    Args:
        home: where verdicts and the budget are kept; None = nowhere, and no budget binds.
        folder: the project's; a key's file is found from there.

    Raises:
        MissingPart: its key is not where the section says.
    """
    import aiohttp  # noqa: F401 - here, so that not every forked child imports it anew

    from environments.judges.learned import LearnedJudge

    ledger = Ledger(Home(home).judge) if home is not None else None
    key = _key(section, folder or Path())
    kind = LearnedJudge if section.kind == "verifier" else ModelJudge
    return kind(section, project, ledger, key, dict(standings or {}), bytes_of)


def _key(section: JudgeSection, folder: Path) -> str | None:
    if section.key_env is not None:
        found, where = secret(section.key_env), f"the variable {section.key_env} is not set"
    elif section.key_file is not None:
        file = folder / section.key_file
        where = f"{file} is not there, or empty"
        try:
            if file.exists() and not file.is_file():  # a pipe may never end
                raise OSError("it is no file")
            found = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            found, where = None, f"{file} cannot be read ({error})"
    else:
        return None
    key = (found or "").strip()
    if key and (why := why_no_key(key)):
        where = why
    elif key:
        return key
    raise MissingPart(f"the judge's key: {where} ([judge] in flywheel.toml)")
