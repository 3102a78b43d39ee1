"""What gateways keep: which fields of a call are in what they wrote, and what a kill costs.

A field counts as kept where its very value is found in what the gateway wrote, in whatever form.
"""

import asyncio
import json
import re
import time
from typing import Any

from benchmarks.gateway_targets import Target

_SETTLE_S = 3.0
"""What loggers that run behind may take."""
_MARK = re.compile(rb"kill-mark-(\d+)")
_REQUESTS, _CLIENTS = 400, 16


def fields_kept(target: Target) -> dict[str, dict[str, bool]]:
    """By field, of a whole answer and of a stream. The client asks for token ids and
    log-probabilities itself, for gateways that pass on what they do not know."""
    found = {}
    for how, stream in (("whole", False), ("stream", True)):
        mark = f"field-mark-{how}"
        tool = {"name": f"tool_{how}", "parameters": {"type": "object", "properties": {}}}
        data = target.recorded()
        # A database is not added to at its end.
        before = 0 if data.startswith(b"SQLite format") else len(data)
        answer = target.ask(
            mark,
            stream=stream,
            temperature=0.123,
            tools=[{"type": "function", "function": tool}],
            logprobs=True,
            return_token_ids=True,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        )
        time.sleep(_SETTLE_S)
        found[how] = _in(target.recorded()[before:], mark, answer, stream)
    return found


def _in(data: bytes, mark: str, answer: bytes, stream: bool) -> dict[str, bool]:
    said = re.sub(rb"\\+", b"", data).replace(b" ", b"")  # JSON in JSON, however deep
    response_id = re.search(rb'"id":\s*"([^"]+)"', answer)

    def has(*any_of: str) -> bool:
        return any(one.replace(" ", "").encode() in said for one in any_of)

    return {
        "messages": has(mark),
        "tools": has(f"tool_{'stream' if stream else 'whole'}"),
        "sampling": has("0.123"),
        "answer": has("should arrive within two days", '"content":"shipped "'),
        "finish reason": has('"stop"', "'stop'"),
        "usage": has('"completion_tokens":50', '"output_tokens":50', '"output":50'),
        "log-probabilities": has("-0.25,-0.25", '"logprob":-0.25')
        if stream
        else has("-0.30000000000000004"),
        "token ids": has("47,48,49") or (stream and has('"token_ids":[49]')),
        "prompt ids": has("417,418,419"),
        "response id": response_id is not None and response_id[1] in said,
    }


class Killed:
    """Chats until the target is killed amid them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._next = iter(range(_REQUESTS))
        self.answered: set[int] = set()

    async def run(self) -> None:
        clients = [asyncio.create_task(self._client()) for _ in range(_CLIENTS)]
        while len(self.answered) < _REQUESTS // 2:
            await asyncio.sleep(0.002)
            if all(client.done() for client in clients):
                break
        self._target.kill()
        await asyncio.gather(*clients)

    async def _client(self) -> None:
        for number in self._next:
            try:
                await self._one(number)
            except (OSError, asyncio.IncompleteReadError, ValueError):
                return

    async def _one(self, number: int) -> None:
        host, _, path = self._target.url.removeprefix("http://").partition("/")
        name, port = host.split(":")
        path = f"/{path}" if path else "/v1/chat/completions"
        model = self._target.options.get("model", "bench")
        stream = number % 2 == 1
        said = [{"role": "user", "content": f"kill-mark-{number}"}]
        body = json.dumps({"model": model, "messages": said, "stream": stream}).encode()
        reader, writer = await asyncio.open_connection(name, int(port))
        key = self._target.options.get("key", "none")
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        answer = await reader.read(-1)
        writer.close()
        if b" 200 " not in answer[:20]:
            raise ValueError(answer[:200])
        if b"[DONE]" in answer if stream else b'"usage"' in answer:
            self.answered.add(number)


def lost_to_a_kill(target: Target) -> dict[str, Any]:
    """How many chats whose end the client saw are not in what the target wrote. It is dead then."""
    killed = Killed(target)
    asyncio.run(killed.run())
    kept = {int(number) for number in _MARK.findall(target.recorded())}
    return {"answered": len(killed.answered), "lost": len(killed.answered - kept)}
