"""A vendor that speaks Anthropic's Messages, whose answers a test writes: the network's far edge.

The last text of the request says what comes: `tool` (two calls, one without arguments), `think`,
`overloaded` (529), `late error` (amid the stream), `new` (a block and fields that nobody knows),
`key` (an error that repeats the key).
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from aiohttp import web

USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 7,
    "output_tokens": 5,
}
TEXT = {"type": "text", "text": "It is shipped."}
THOUGHT = {"type": "thinking", "thinking": "Let me see.", "signature": "signed"}
CALLS = [
    {"type": "tool_use", "id": "toolu_a", "name": "find", "input": {"order": 1}},
    {"type": "tool_use", "id": "toolu_b", "name": "list", "input": {}},
]
NEW = {"type": "hologram", "shape": [1, 2]}


class Vendor:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        script = str(_last_text(body))
        if script == "overloaded":
            return _error(529, "overloaded_error", "Overloaded")
        if script == "key":
            return _error(401, "authentication_error", f"bad {request.headers['x-api-key']}")
        message = whole(body, script)
        if not body.get("stream"):
            return web.json_response(message)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, event in enumerate(events(message)):
            if script == "late error" and number == 4:
                event = {"type": "error", "error": {"type": "api_error", "message": "it broke"}}
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            await response.write(data.encode())
            if event["type"] == "error":
                break
        return response


def _error(status: int, kind: str, text: str) -> web.Response:
    error = {"type": "error", "error": {"type": kind, "message": text}}
    return web.json_response(error, status=status)


def _last_text(body: dict[str, Any]) -> Any:
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else content[-1].get("text")


def whole(body: dict[str, Any], script: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [TEXT]
    if script == "tool":
        content = [TEXT, *CALLS]
    if script == "think":
        content = [THOUGHT, TEXT]
    if script == "new":
        content = [TEXT, NEW]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": "tool_use" if script == "tool" else "end_turn",
        "stop_sequence": None,
        "usage": {**USAGE, **({"new_tokens": 3} if script == "new" else {})},
    }


def events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    started = {**message, "content": [], "stop_reason": None}
    started["usage"] = {**message["usage"], "output_tokens": 1}
    yield {"type": "message_start", "message": started}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        yield from _block(index, block)
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _block(index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = block["type"]
    empty = {
        "text": {"type": "text", "text": ""},
        "thinking": {"type": "thinking", "thinking": "", "signature": ""},
        "tool_use": {**block, "input": {}},
    }
    yield {"type": "content_block_start", "index": index, "content_block": empty.get(kind, block)}
    deltas: list[dict[str, Any]] = []
    if kind == "text":
        deltas = [{"type": "text_delta", "text": word} for word in ("It ", "is ", "shipped.")]
    if kind == "tool_use" and block["input"]:
        said = json.dumps(block["input"])
        deltas = [{"type": "input_json_delta", "partial_json": p} for p in (said[:4], said[4:])]
    if kind == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


@contextlib.contextmanager
def vendor() -> Iterator[Vendor]:
    scripted = Vendor()
    app = web.Application()
    app.router.add_post("/v1/messages", scripted.messages)
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield scripted
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
