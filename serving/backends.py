"""Who is asked for an answer: the deployment that was chosen, and where that fails, another.

Enters a routed request; leaves a reply in the chat form, from whichever backend gave it: the
request then names that one. Invariant: nothing of another's answer has reached the client before.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from serving.routed import Routed
from serving.routing import served_as
from serving.upstream import NotLoaded, Reply, Upstream


class Backends:
    def __init__(self, upstream: Upstream, counts: Counter[str]) -> None:
        self.upstream, self.counts = upstream, counts

    @asynccontextmanager
    async def ask(self, asked: Routed) -> AsyncIterator[Reply]:
        """The engine's; where it has not loaded a challenger, the champion's: trying one out must
        cost nobody an answer.

        Raises:
            ApiError: nobody could answer.
        """
        async with AsyncExitStack() as stack:
            try:
                reply = await stack.enter_async_context(self._reply(asked))
            except NotLoaded:
                if asked.instead is None:
                    raise
                self.counts["challenger_absent"] += 1
                asked.fall_back(asked.instead)
                reply = await stack.enter_async_context(self._reply(asked))
            yield reply

    def _reply(self, asked: Routed) -> AbstractAsyncContextManager[Reply]:
        chat, name = asked.chat, served_as(asked.deployment)
        return self.upstream.ask(
            chat.for_engine(name), lambda: chat.for_engine(name, bounded=False)
        )
