"""The calls of all episodes: from a harness's bytes to the served model and into the record.

A call takes the gateway's way (`serving.passing`); what it goes on from, what is forced and where
its record goes are its own. Invariant: a call that extends an earlier one is asked with ids that
begin with that one's, or it is a new branch whose record says why.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.errors import EngineError
from serving.answer import Answer
from serving.conversation import Offload
from serving.engines.client import EngineClient
from serving.engines.reach import Access as Reach
from serving.interception_bridge import Bridge, Prompt
from serving.interception_episodes import Call, Episode
from serving.interception_forced import ForcedChat
from serving.interception_spoken import Spoken
from serving.interception_tree import Node, line_of, tools_key
from serving.limits import Limits
from serving.passing import Passing, Replying, apart, messages_asked, recorded, why_of
from serving.policies import Policies, Policy
from serving.refusal import ApiError, Headers
from serving.upstream import Upstream

if TYPE_CHECKING:
    from trainer.render import Rendering

BUSY_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Between two tries of a call for which the server's queue had no room."""


class Served(NamedTuple):
    """Whose answers the episodes get: any server that speaks OpenAI's protocol."""

    url: str
    model: str
    """The name that the server knows it by."""
    key: str | None = None
    deployment: str | None = None
    """The name that records bear; None = `model`."""
    tokens: bool = True
    """False = a server that gives neither token ids nor log-probabilities."""
    template_digest: str | None = None
    """Of the server's chat template; None = what its /health says, if it does."""
    tokenizer_digest: str | None = None
    base: str | None = None
    """Folder of the base model, by whose chat template prompts of later turns keep what was
    sampled. None = what the server's /health names."""

    @property
    def name(self) -> str:
        return self.deployment or self.model


class Calls(Passing[Call]):
    def __init__(
        self,
        served: Served,
        limits: Limits,
        offload: Offload,
        rendering: "Callable[[], Rendering] | None",
        policies: Policies | None = None,
    ) -> None:
        self.served, self.limits, self.offload = served, limits, offload
        self.policies = policies or Policies(Policy(0, served.model, served.name))
        self.counts: Counter[str] = Counter()
        self._bridge = Bridge(rendering)
        self._upstream = Upstream(limits)
        self._upstream.point_to(served.url, served.key)

    async def open(self) -> None:
        if self.served.tokens and None in (self.served.template_digest, self.served.base):
            self.served = await asyncio.to_thread(_asked_itself, self.served)
        self._bridge.default(self.served.base)

    async def close(self) -> None:
        self._bridge.close()
        await self._upstream.close()

    # --- in

    async def let_in(
        self, episode: Episode, body: bytes, headers: dict[bytes, bytes], request_id: str
    ) -> Call:
        """
        Raises:
            ApiError: 400: `body` is no chat request.
        """
        forced, tokens = episode.forced, self.served.tokens
        chat = await apart(body, lambda: ForcedChat(body, self.limits, forced, tokens=tokens))
        messages = await apart(body, lambda: messages_asked(chat.request.messages, self.offload))
        line = await apart(body, lambda: line_of(messages))
        tools = tools_key(chat.request.tools) if chat.plain else None
        found = episode.tree.find(line, messages, tools, _said_parents(headers))
        number = episode.number()
        chat.number(number)
        overruled = chat.overruled
        call = Call(
            chat=chat,
            messages=episode.tree.same(line, messages),
            answers=self.policies.now.name,
            response_id=f"chatcmpl-{episode.trace_id[:20]}-{number}",
            request_id=request_id,
            start=time.time_ns(),
            template_digest=None if chat.templated else self.served.template_digest,
            tokenizer_digest=self.served.tokenizer_digest,
            probability=None,
            parents=found.parents,
            notes={"overruled": overruled} if overruled else {},
            episode=episode,
            number=number,
            line=line,
            tools=tools,
        )
        if tokens and found.node is not None:
            await self._extend(call, found.node, found.new)
        return call

    async def _extend(self, call: Call, node: Node, new: int) -> None:
        """The prompt as ids where that can be; else the record says why not."""
        request = call.chat.request
        if call.tools is None or node.tools != call.tools:
            prompt = Prompt(None, "the tools are others, or the prompt is laid out in another way")
        else:
            prompt = await self._bridge.prompt(
                node.tokens,
                request.messages[new:],
                request.tools or (),
                (self.served.template_digest, self.served.tokenizer_digest),
            )
        call.prompt = prompt.ids
        call.notes["bridge"] = prompt.why or "exact"

    # --- and out

    @contextlib.asynccontextmanager
    async def ask(self, asked: Call) -> AsyncIterator[Replying]:
        """A server whose queue is full is waited for: the call's tokens are the newest version's
        as it is taken in."""
        async with contextlib.AsyncExitStack() as held:
            for pause in BUSY_S:
                try:
                    reply = await self._asked(asked, held)
                    break
                except ApiError as error:
                    if error.status != 429:
                        raise
                await asyncio.sleep(pause)
            else:
                reply = await self._asked(asked, held)
            yield reply

    async def _asked(self, asked: Call, held: contextlib.AsyncExitStack) -> Replying:
        async with contextlib.AsyncExitStack() as own:
            policy = await own.enter_async_context(self.policies.use())
            asked.answers = policy.name
            ask = self._chat if asked.prompt is None else self._continued
            reply = await own.enter_async_context(ask(asked, policy.model))
            await held.enter_async_context(own.pop_all())
            return reply

    @contextlib.asynccontextmanager
    async def _chat(self, asked: Call, model: str) -> AsyncIterator[Replying]:
        chat = asked.chat
        async with self._upstream.ask(
            chat.for_engine(model), lambda: chat.for_engine(model, bounded=False)
        ) as reply:
            yield reply

    @contextlib.asynccontextmanager
    async def _continued(self, asked: Call, model: str) -> AsyncIterator[Replying]:
        chat, prompt = asked.chat, asked.prompt
        assert prompt is not None
        async with self._upstream.ask(
            chat.for_completions(model, prompt),
            lambda: chat.for_completions(model, prompt, bounded=False),
            route="/v1/completions",
        ) as reply:
            tools = chat.request.tools or ()
            yield Spoken(
                reply,
                lambda ids: self._bridge.parse(ids, tools),
                asked.span_id,
                bool(chat.request.stop),
            )

    def record(self, asked: Call, answer: Answer | None, failure: BaseException | None) -> None:
        why = None if failure is None else why_of(failure)
        if isinstance(failure, asyncio.CancelledError) and asked.episode.over:
            why = "the episode ended while this call was under way"
        if isinstance(failure, ApiError | EngineError):
            asked.notes["status"] = failure.status if isinstance(failure, ApiError) else 502
        if answer is not None and answer.prompt_token_ids == asked.prompt is not None:
            answer.prompt_token_ids = asked.prompt  # the same ids, held once
        asked.episode.keep(asked, recorded(asked, answer, why, self.offload))

    def names(self, asked: Call) -> Headers:
        return [
            (b"x-flywheel-trace-id", asked.episode.trace_id.encode()),
            (b"x-flywheel-deployment", asked.answers.encode()),
            (b"x-flywheel-span", asked.span_id.encode()),
        ]


def _said_parents(headers: dict[bytes, bytes]) -> list[str]:
    """Spans that a harness of ours names; what never comes is taken out when the episode ends."""
    said = headers.get(b"x-flywheel-parent", b"").decode("latin-1").split(",")
    return [name for name in map(str.strip, said) if 0 < len(name) <= 256][:16]


def _asked_itself(served: Served) -> Served:
    """With what the server itself says of its model and chat template, where we know nothing."""
    with EngineClient(served.url, access=Reach(key=served.key), timeout_s=5.0) as client:
        try:
            said = client.health()
        except EngineError:
            return served
    names = {
        "template_digest": "template_digest", "tokenizer_digest": "tokenizer_digest",
        "base": "model",
    }  # fmt: skip
    found: dict[str, Any] = {
        field: value
        for field, name in names.items()
        if getattr(served, field) is None and isinstance(value := said.get(name), str)
    }
    return served._replace(**found)
