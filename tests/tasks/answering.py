"""A model at a URL whose answers a test writes: the far edge of the network, not our engine."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], "str | dict[str, Any] | int"]
"""Given a request's body: a text, a whole message, or an HTTP status."""


class Model:
    def __init__(self, answer: Answer, delay: float = 0.0) -> None:
        self.answer, self.delay = answer, delay
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        await asyncio.sleep(self.delay)
        said = self.answer(body)
        if isinstance(said, int):
            return web.json_response({"error": {"message": "told to fail"}}, status=said)
        message = {"role": "assistant", "content": said} if isinstance(said, str) else said
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        if body.get("stream"):
            return await _streamed(request, body["model"], message, finish)
        choice = {"index": 0, "message": message, "finish_reason": finish}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"],
             "choices": [choice], "usage": usage}
        )  # fmt: skip

    async def models(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "scripted"}]})

    def application(self) -> web.Application:
        made = web.Application(client_max_size=64 * 2**20)
        made.router.add_post("/v1/chat/completions", self.chat)
        made.router.add_get("/v1/models", self.models)
        return made


async def _streamed(
    request: web.Request, model: str, message: dict[str, Any], finish: str
) -> web.StreamResponse:
    """The same as one event, as servers that stream would send it."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    calls = [{"index": at, **one} for at, one in enumerate(message.get("tool_calls", ()))]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": model}
    for choices, used in (
        ([{"index": 0, "delta": delta, "finish_reason": None}], None),
        ([{"index": 0, "delta": {}, "finish_reason": finish}], None),
        ([], usage),
    ):
        event = {**base, "choices": choices, "usage": used}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


@contextlib.contextmanager
def answering(answer: Answer, delay: float = 0.0, kind: type[Model] = Model) -> Iterator[Model]:
    """It listens in a thread for the time of the block."""
    model = kind(answer, delay)
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(model.application(), shutdown_timeout=0.1)

    async def begin() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        model.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield model
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def last_number(body: dict[str, Any]) -> str:
    words = json.dumps(body["messages"][-1]["content"]).split()
    numbers = [word.strip('"?.') for word in words if word.strip('"?.').isdigit()]
    return numbers[-1] if numbers else "no number"
