"""Answers in the making, and their OpenAI form: whole, or as chunks of a stream.

Enter: tokens from the sampler's thread, through a mailbox that wakes the event loop once for many.
Leave: the dictionaries that are sent. Token ids, logprobs and usage are what was really sampled;
text is spelled from them.
"""

import asyncio
import contextlib
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.engines.embedded_batch import Row
from serving.engines.embedded_choose import Drawn
from serving.engines.embedded_requests import GangId
from serving.engines.embedded_text import Speller

Item = tuple[int, Drawn | None, str | None]
"""Choice, token, finish reason; without a token the reason says what failed."""


class Mailbox:
    """From the sampler's thread to one request's task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._event = asyncio.Event()
        self._woken = False
        self.gone = False
        """The client hung up."""

    def put(self, choice: int, drawn: Drawn | None, finish: str | None) -> None:
        self._items.append((choice, drawn, finish))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody listens.
                self._loop.call_soon_threadsafe(self._event.set)

    def hang_up(self) -> None:
        self.gone = True
        self._event.set()

    async def get(self) -> list[Item]:
        await self._event.wait()
        self._event.clear()
        self._woken = False
        return [self._items.popleft() for _ in range(len(self._items))]


class Vocabulary:
    """Single tokens as text, for logprobs."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        text = self._known.get(token)
        if text is None:
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            self._known[token] = text
        return text


@dataclass
class Choice:
    row: Row
    speller: Speller
    drawn: list[Drawn] = field(default_factory=list)
    finish: str | None = None
    failed: str | None = None

    @property
    def ids(self) -> list[int]:
        return [each.id for each in self.drawn]

    @property
    def over(self) -> bool:
        return self.finish is not None or self.failed is not None

    def add(self, drawn: Drawn | None, finish: str | None) -> None:
        if self.over:
            return
        if drawn is None:
            self.failed = finish or "failed"
            return
        self.drawn.append(drawn)
        if drawn.id not in self.row.stop_ids:
            self.speller.push(drawn.id)
        self.finish = finish


@dataclass
class Job:
    """One request: its choices, in order."""

    mailbox: Mailbox
    choices: list[Choice]
    gang: GangId | None = None
    watch: "asyncio.Task[None] | None" = None
    """Waits for the client to hang up."""

    def __post_init__(self) -> None:
        self.rows = [choice.row for choice in self.choices]

    @property
    def over(self) -> bool:
        return all(choice.over for choice in self.choices)

    @property
    def failed(self) -> str | None:
        return next((choice.failed for choice in self.choices if choice.failed), None)

    def abandon(self) -> None:
        for row in self.rows:
            row.abandoned = True

    async def news(self) -> list[tuple[Choice, int, list[Drawn]]]:
        """Waits, then: each choice with news, its index, and its new tokens."""
        items = await self.mailbox.get()
        found = []
        for index, grouped in itertools.groupby(
            sorted(items, key=lambda item: item[0]), key=lambda item: item[0]
        ):
            choice = self.choices[index]
            before = len(choice.drawn)
            for _, drawn, finish in grouped:
                choice.add(drawn, finish)
            found.append((choice, index, choice.drawn[before:]))
        return found


class Wording:
    """How one request wants its answers: shared by all its choices."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        chat: bool,
        model: str,
        created: int,
        logprobs: bool,
        ids: bool,
        ids_as_tokens: bool,
    ) -> None:
        self.vocabulary, self.chat, self.model, self.created = vocabulary, chat, model, created
        self.logprobs, self.ids, self.ids_as_tokens = logprobs, ids, ids_as_tokens
        self.id = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12)

    def envelope(self, *, chunk: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": self.id,
            "object": f"{kind}.chunk" if chunk and self.chat else kind,
            "created": self.created,
            "model": self.model,
        }

    def token(self, token: int) -> str:
        return f"token_id:{token}" if self.ids_as_tokens else self.vocabulary(token)

    def logprobs_of(self, drawn: Sequence[Drawn], offset: int = 0) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        return self._chat_logprobs(drawn) if self.chat else self._plain_logprobs(drawn, offset)

    def _chat_logprobs(self, drawn: Sequence[Drawn]) -> dict[str, Any]:
        def said(token: int, logprob: float) -> dict[str, Any]:
            text = self.token(token)
            spelled = list(self.vocabulary(token).encode("utf-8", "replace"))
            return {"token": text, "logprob": logprob, "bytes": spelled}

        return {
            "content": [
                {**said(each.id, each.logprob), "top_logprobs": [said(*pair) for pair in each.top]}
                for each in drawn
            ]
        }

    def _plain_logprobs(self, drawn: Sequence[Drawn], offset: int) -> dict[str, Any]:
        tokens = [self.token(each.id) for each in drawn]
        lengths = [len(self.vocabulary(each.id)) for each in drawn]
        starts = itertools.accumulate(lengths, initial=offset)
        return {
            "tokens": tokens,
            "token_logprobs": [each.logprob for each in drawn],
            "top_logprobs": [
                {self.token(token): logprob for token, logprob in each.top} for each in drawn
            ],
            "text_offset": list(starts)[: len(tokens)],
        }


def usage(prompt: int, choices: Sequence[Choice]) -> dict[str, int]:
    completion = sum(len(choice.drawn) for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def spelled_calls(calls: Sequence[Any]) -> list[dict[str, Any]]:
    """Tool calls in OpenAI's form; one without an id of its own gets one."""
    return [
        {
            "id": call.id or f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


Deliver = Callable[[Drawn | None, str | None], None]
