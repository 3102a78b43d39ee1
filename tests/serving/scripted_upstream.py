"""An OpenAI-shaped engine whose answers a test writes: the far edge of the network, not our engine.

It answers at the speed and with the faults that the request's last message asks for, as words:
`cut` (the stream breaks off), `error` (500), `hang`, `slow`, `nousage`, `zeros`, `half` (JSON cut),
`late error` (an error event amid the stream), `calls` (two parallel tool calls, mixed), `thinks`
(before it answers), `refuses` (in the field for it), `large`, `moved` (307 to `moved_to`), `key`
(401 that repeats the caller's),
`flood` (20 MB of stream), `busy` (429 the first time), `odd ids`, `odd logprobs`, `odd count`
(numbers that cannot be).
"""

import asyncio
import contextlib
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from flywheel.children import follow_parent

WORDS = ["It ", "is ", "shipped", "."]
IDS = [11, 12, 13, 14, 2]
PROMPT = [1, 5, 6, 7]


class Upstream:
    """Runs in a thread of the test; `requests` are the bodies it got."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.hung_up = 0
        self.url = ""
        self.moved_to = ""
        self.delay = 0.0
        self.release = threading.Event()
        self.adapters: list[str] = []
        self.broken = False
        self.not_loaded: set[str] = set()
        self.broken_for: set[str] = set()
        """Models for which every chat is a 500."""
        self.broken_chat = False
        self.error_first = False
        """Every stream is one error event."""

    async def load(self, request: web.Request) -> web.Response:
        self.adapters.append((await request.json())["lora_name"])
        return web.Response(text="ok")

    async def health(self, request: web.Request) -> web.Response:
        if self.broken:
            return web.json_response({"status": "failed"}, status=503)
        return web.json_response({"status": "ok"})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in ["base", *self.adapters]]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.requests.append(body)
        self.raw.append(raw)
        content = body["messages"][-1].get("content")
        script = content if isinstance(content, str) else ""
        if script == "busy" and len(self.requests) == 1:
            return web.json_response({"error": {"message": "too many", "code": "x"}}, status=429)
        self.broken = script == "break"
        if body["model"] in self.not_loaded:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        await asyncio.sleep(self.delay)
        try:
            if (
                script == "error"
                or script == f"error at {body['model']}"
                or self.broken_chat
                or body["model"] in self.broken_for
            ):
                return web.json_response({"error": {"message": "boom"}}, status=500)
            if script == "bad":
                error = {"message": "too long", "type": "BadRequestError", "param": "messages"}
                return web.json_response({"error": error}, status=400)
            if script == "half":
                return web.Response(
                    body=b'{"id": "x", "choices": [', content_type="application/json"
                )
            if script == "moved":
                return web.Response(status=307, headers={"location": self.moved_to})
            if script == "key":
                error = {"message": f"no such key: {request.headers['authorization']}"}
                return web.json_response({"error": error}, status=401)
            if script == "hang":
                await asyncio.sleep(60)
            if body.get("stream"):
                return await self.stream(request, body, script)
            return web.json_response(answer(body, script))
        except (asyncio.CancelledError, ConnectionResetError):
            self.hung_up += 1
            raise

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """/v1/completions, as vLLM answers it: `echo` is done."""
        body = await request.json()
        self.requests.append(body)
        if not body.get("stream"):
            return web.json_response(completion(body))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        usage = {"prompt_tokens": 4, "completion_tokens": 5}
        for event in (*completion_events(body), {"id": "e", "choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        data = [{"object": "embedding", "index": 0, "embedding": [0.25, -1.5]}]
        usage = {"prompt_tokens": 4, "total_tokens": 4}
        return web.json_response({"object": "list", "data": data, "model": "x", "usage": usage})

    async def stream(self, request: web.Request, body: dict[str, Any], script: str) -> Any:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if self.error_first:
            error = {"error": {"message": "out of memory", "type": "server"}}
            await response.write(b"data: " + json.dumps(error).encode() + b"\n\n")
            return response
        for number, event in enumerate(events(body, script)):
            if script == "cut" and number == 3:
                assert request.transport is not None
                request.transport.close()
                return response
            if script == "late error" and number == 3:
                error = {"error": {"message": "out of memory", "type": "server"}}
                await response.write(b"data: " + json.dumps(error).encode() + b"\n\n")
                break
            if script == "slow":
                await asyncio.sleep(0.05)
            if script == "hold" and number == 2:
                while not self.release.is_set():
                    await asyncio.sleep(0.01)
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if script != "late error":
            await response.write(b"data: [DONE]\n\n")
        return response


def logprobs(ids: list[int]) -> dict[str, Any]:
    return {
        "content": [
            {"token": str(token), "logprob": -0.25, "bytes": None, "top_logprobs": []}
            for token in ids
        ]
    }


def answer(body: dict[str, Any], script: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(WORDS)}
    if script == "surrogate":
        message["content"] = "half \ud83d"
    if script == "large":
        message["content"] = "a" * 20 * 2**20
    if script == "thinks":
        message["reasoning_content"] = "so far"
    if script == "refuses":
        message |= {"content": None, "refusal": "I will not."}
    if script == "calls":
        message |= {"content": None, "tool_calls": WHOLE_CALLS}
    count = body.get("n") or 1
    usage = {"prompt_tokens": 4, "completion_tokens": 5 * count, "total_tokens": 9}
    if script == "zeros":
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    if script == "odd count":
        usage = {"prompt_tokens": -4, "completion_tokens": 10**30, "total_tokens": 1}
    if script == "short ids":
        usage["completion_tokens"] = 9
    whole = {
        "id": "engine-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {
                "index": index,
                "message": message,
                "finish_reason": "tool_calls" if script == "calls" else "stop",
                "logprobs": logprobs(IDS) if body.get("logprobs") else None,
                "token_ids": IDS if body.get("return_token_ids") else None,
                "stop_reason": None,
            }
            for index in range(count)
        ],
        "usage": None if script == "nousage" else usage,
        "prompt_token_ids": PROMPT if body.get("return_token_ids") else None,
        "kept_field": {"as": ["it", "is", 1.50]},
    }
    if script == "odd ids":
        whole["choices"][0]["token_ids"] = [-1, 2**70, 1, 2, 3]
    if script == "odd logprobs":
        whole["choices"][0]["logprobs"]["content"][2]["logprob"] = 3.5
    return whole


def events(body: dict[str, Any], script: str) -> Iterator[dict[str, Any]]:
    base = {
        "id": "engine-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body["model"],
    }

    def event(index: int, delta: dict[str, Any], ids: list[int], finish: str | None = None) -> Any:
        choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish}
        choice["logprobs"] = logprobs(ids) if body.get("logprobs") and ids else None
        choice["token_ids"] = ids if body.get("return_token_ids") else None
        return {**base, "choices": [choice], "usage": None}

    first = True
    for index in range(body.get("n") or 1):
        opening = event(index, {"role": "assistant", "content": ""}, [])
        if first and body.get("return_token_ids"):
            opening["prompt_token_ids"] = PROMPT
        first = False
        yield opening
        if script == "calls":
            yield from (event(index, {"tool_calls": [part]}, [11]) for part in CALLS)
            yield event(index, {}, [2], "tool_calls")
            continue
        if script == "thinks":
            yield from (event(index, {"reasoning_content": word}, []) for word in ("so ", "far"))
        if script == "refuses":
            yield from (event(index, {"refusal": word}, []) for word in ("I will ", "not."))
            yield event(index, {}, [], "stop")
            continue
        if script == "flood":
            yield from (event(index, {"content": "x" * 50_000}, [1]) for _ in range(400))
        for word, token in zip(WORDS, IDS, strict=False):
            yield event(index, {"content": word}, [token])
        yield event(index, {}, [2], "stop")
    if (body.get("stream_options") or {}).get("include_usage") and script != "nousage":
        count = 5 * (body.get("n") or 1)
        yield {**base, "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": count}}


def completion(body: dict[str, Any]) -> dict[str, Any]:
    shown = body["prompt"] if body.get("echo") and isinstance(body["prompt"], str) else ""
    said = [-0.25] * len(IDS)
    choice = {
        "index": 0,
        "text": shown + "".join(WORDS),
        "finish_reason": "stop",
        "logprobs": {"token_logprobs": [None, -1.0, *said] if shown else said, "tokens": []},
        "token_ids": IDS,
        "prompt_token_ids": PROMPT,
    }
    usage = {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
    return {"id": "e", "object": "text_completion", "created": 1, "model": body["model"]} | {
        "choices": [choice],
        "usage": usage,
        "kept_field": 1.50,
    }


def completion_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place, (word, token) in enumerate(zip([*WORDS, ""], IDS, strict=True)):
        choice: dict[str, Any] = {"index": 0, "text": word, "token_ids": [token]}
        choice["logprobs"] = {"token_logprobs": [-0.25], "tokens": [word]}
        choice["finish_reason"] = "stop" if token == IDS[-1] else None
        if not place:
            choice["prompt_token_ids"] = PROMPT
        yield {"id": "e", "object": "text_completion", "created": 1, "choices": [choice]}


CALLS: list[dict[str, Any]] = [
    {"index": 0, "id": "call_a", "type": "function", "function": {"name": "find", "arguments": ""}},
    {"index": 1, "id": "call_b", "type": "function", "function": {"name": "send", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"order":'}},
    {"index": 1, "function": {"arguments": '{"to":'}},
    {"index": 0, "function": {"arguments": " 1}"}},
    {"index": 1, "function": {"arguments": ' "x"}'}},
]
WHOLE_CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "find", "arguments": '{"order": 1}'}},
    {"id": "call_b", "type": "function", "function": {"name": "send", "arguments": '{"to": "x"}'}},
]


def application(scripted: Upstream) -> web.Application:
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/chat/completions", scripted.chat)
    app.router.add_post("/v1/completions", scripted.complete)
    app.router.add_post("/v1/embeddings", scripted.embed)
    app.router.add_post("/v1/load_lora_adapter", scripted.load)
    app.router.add_get("/v1/models", scripted.models)
    app.router.add_get("/health", scripted.health)
    return app


@contextlib.contextmanager
def upstream(tls: ssl.SSLContext | None = None) -> Iterator[Upstream]:
    scripted = Upstream()
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(application(scripted), shutdown_timeout=0.1, handler_cancellation=True)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        scripted.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield scripted
    finally:
        scripted.release.set()
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


if __name__ == "__main__":
    follow_parent()
    web.run_app(application(Upstream()), host="127.0.0.1", port=int(sys.argv[1]), print=None)
