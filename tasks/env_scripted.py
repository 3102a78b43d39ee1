"""A model that says what it is told, one message after the other, at a local URL.

Enter a script: the messages of one episode. Leave answers as any OpenAI-compatible server gives
them, streamed where that is asked for. It stands in for a model, so that gold answers go the whole
way of harness, tools and runtime. What is asked beyond the script is answered with nothing.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from environments.golden import Said
from flywheel.chat import to_chat
from flywheel.records import Message, say

if TYPE_CHECKING:
    from aiohttp import web

NAME = "scripted"


class Scripted:
    def __init__(self) -> None:
        self.url = ""
        self._left: list[Message] = []

    def script(self, said: Said) -> None:
        """What the next calls are answered with; the words of others in it are left out."""
        messages: Sequence[Message] = [say("assistant", said)] if isinstance(said, str) else said
        self._left = [message for message in messages if message.role == "assistant"]

    async def chat(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        asked = await request.json()
        message = self._left.pop(0) if self._left else say("assistant", "")
        (said,) = to_chat([message])
        finish = "tool_calls" if message.tool_calls else "stop"
        base = {"id": "scripted", "created": 0, "model": NAME}
        usage = {"prompt_tokens": None, "completion_tokens": None}
        if not asked.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": finish}
            return web.json_response(
                {**base, "object": "chat.completion", "choices": [choice], "usage": None}
            )
        calls = [{"index": at, **call} for at, call in enumerate(said.pop("tool_calls", ()))]
        delta = {**said, **({"tool_calls": calls} if calls else {})}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for choices, used in (
            ([{"index": 0, "delta": delta, "finish_reason": None}], None),
            ([{"index": 0, "delta": {}, "finish_reason": finish}], None),
            ([], usage),
        ):
            event = {**base, "object": "chat.completion.chunk", "choices": choices, "usage": used}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


@contextlib.asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    """Listens on a free port of the loopback address for the time of the block."""
    from aiohttp import web

    model = Scripted()
    application = web.Application(client_max_size=64 * 2**20)
    application.router.add_post("/v1/chat/completions", model.chat)
    runner: Any = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        model.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield model
    finally:
        await runner.cleanup()
