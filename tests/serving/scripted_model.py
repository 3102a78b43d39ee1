"""A model whose answers a test writes, behind vLLM's routes and a real chat template.

The far edge of the network: what it is asked with is kept, as ids and as text; what it says is a
function of that text. Both routes, whole and streamed; ids and log-probabilities as vLLM has them.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from aiohttp import web

from serving.conversation import Offload, messages_of
from trainer.render import Rendering

_offload = Offload(lambda data: "", text=2**62, inline_image=2**62)


class ScriptedModel:
    def __init__(self, rendering: Rendering, say: Callable[[str], str]) -> None:
        self.rendering, self.say = rendering, say
        self.prompts: list[list[int]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Route and body."""
        self.cut_after: int | None = None
        """Tokens after which a stream breaks off."""
        self.fail: tuple[int, str] | None = None
        """Status and message of every answer."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/health", self.health)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def health(self, request: web.Request) -> web.Response:
        digests = {
            "template_digest": self.rendering.template_digest,
            "tokenizer_digest": self.rendering.tokenizer_digest,
        }
        return web.json_response({"status": "ok", **digests})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        messages = messages_of(body["messages"], _offload)
        prompt = self.rendering.render_prompt(messages, body.get("tools") or ())
        return await self._answer(request, body, prompt)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._answer(request, body, body["prompt"])

    async def _answer(
        self, request: web.Request, body: dict[str, Any], prompt: list[int]
    ) -> web.StreamResponse:
        chat = request.path.endswith("chat/completions")
        self.asked.append((request.path, body))
        self.prompts.append(prompt)
        if self.fail is not None:
            status, message = self.fail
            return web.json_response({"error": {"message": message}}, status=status)
        text = self.say(self.rendering.decode(prompt))
        ids = [*self.rendering.tokenizer.encode(text, add_special_tokens=False)]
        ids.append(self.rendering.stop_ids[0])
        finish = "stop" if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        for stop in body.get("stop") or ():
            ids, finish = self._stopped(ids, stop, finish)
        choices = range(body.get("n") or 1)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids) * len(choices)}
        if body.get("stream"):
            return await self._stream(request, prompt, ids, finish, chat, usage, list(choices))
        said = [self._choice(index, prompt, ids, finish, chat, body) for index in choices]
        whole = {"id": "x", "created": 1, "choices": said, "usage": usage}
        return web.json_response({**whole, "prompt_token_ids": prompt} if chat else whole)

    def _choice(
        self,
        index: int,
        prompt: list[int],
        ids: list[int],
        finish: str,
        chat: bool,
        body: dict[str, Any],
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index, "finish_reason": finish, "token_ids": ids,
            "logprobs": _logprobs(ids, chat),
        }  # fmt: skip
        if not chat:
            return {
                **choice,
                "text": self._text(ids, body.get("stop") or ()),
                "prompt_token_ids": prompt,
            }
        answer = self.rendering.parse(ids, body.get("tools") or ())
        message: dict[str, Any] = {"role": "assistant", "content": answer.message.text}
        if calls := answer.message.tool_calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(calls)
            ]
            choice["finish_reason"] = "tool_calls" if finish == "stop" else finish
        return {**choice, "message": message}

    async def _stream(
        self,
        request: web.Request,
        prompt: list[int],
        ids: list[int],
        finish: str,
        chat: bool,
        usage: dict[str, int],
        indices: list[int],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def send(chunk: dict[str, Any]) -> None:
            whole = json.dumps({"id": "x", "created": 1, **chunk})
            await response.write(f"data: {whole}\n\n".encode())

        for index in indices:
            for place, token in enumerate(ids):
                if place == self.cut_after:
                    assert request.transport is not None
                    request.transport.close()
                    return response
                last = place == len(ids) - 1
                choice: dict[str, Any] = {
                    "index": index, "token_ids": [token], "logprobs": _logprobs([token], chat),
                    "finish_reason": finish if last else None,
                }  # fmt: skip
                text = self._text([token])
                choice |= {"delta": {"content": text}} if chat else {"text": text}
                if place == 0 and not chat:
                    choice["prompt_token_ids"] = prompt
                extra = {"prompt_token_ids": prompt} if chat and place == 0 else {}
                await send({"choices": [choice], **extra})
        await send({"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _text(self, ids: list[int], stops: Sequence[str] = ()) -> str:
        ends = self.rendering.stop_ids
        text = self.rendering.decode([token for token in ids if token not in ends])
        for stop in stops:
            text = text.partition(stop)[0]
        return text

    def _stopped(self, ids: list[int], stop: str, finish: str) -> tuple[list[int], str]:
        """As vLLM: the ids end with the token that made the stop string whole."""
        for length in range(len(ids)):
            if stop in self.rendering.decode(ids[:length]):
                return ids[:length], "stop"
        return ids, finish


def _logprobs(ids: list[int], chat: bool) -> dict[str, Any]:
    if chat:
        return {"content": [{"token": str(token), "logprob": -token / 1000} for token in ids]}
    return {
        "tokens": [str(token) for token in ids],
        "token_logprobs": [-token / 1000 for token in ids],
        "top_logprobs": None,
    }
