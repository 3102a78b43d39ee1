"""The one address that a program has: it leads to its episode's model and nowhere else.

Enter: an episode's Access. Leaves: a URL, or a socket in the workspace for a program without a
network. Invariants: only what lies under /v1 of that episode is reached; answers pass as they come,
streams too; what is asked beyond the budget is refused, and the refusal says why.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.episodes import Access

if TYPE_CHECKING:
    from aiohttp import web

BODY = 64 * 2**20
"""Bytes of one request."""
_OWN = {"host", "content-length", "transfer-encoding", "connection", "authorization", "te"}
_HOPS = {"content-length", "transfer-encoding", "connection", "content-encoding", "keep-alive"}


class Door:
    """Counts what passes; `spent` is set by the first call beyond `calls`."""

    def __init__(self, access: Access, calls: int) -> None:
        self.access, self.left = access, calls
        self.spent = asyncio.Event()
        self.url = ""

    @contextlib.asynccontextmanager
    async def open(self, socket: Path | None = None) -> AsyncIterator["Door"]:
        """At a loopback port, which `url` then names, or at a `socket` file."""
        import aiohttp
        from aiohttp import web

        app = web.Application(client_max_size=BODY)
        app.router.add_route("*", "/v1/{rest:.*}", self._pass)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, handler_cancellation=True)
        async with aiohttp.ClientSession(
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            connector=aiohttp.TCPConnector(limit=0),
        ) as self._client:
            await runner.setup()
            try:
                await _listen(runner, socket)
                if socket is None:
                    self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
                yield self
            finally:
                await runner.cleanup()

    async def _pass(self, request: "web.Request") -> "web.StreamResponse":
        import aiohttp
        from aiohttp import web

        if request.method == "POST":
            self.left -= 1
            if self.left < 0:
                self.spent.set()
                return web.json_response(_error("the budget of model calls is spent"), status=400)
        body = await request.read()
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _OWN]
        headers.append(("Authorization", f"Bearer {self.access.key}"))
        url = f"{self.access.url.rstrip('/')}/{request.match_info['rest']}"
        answer: web.StreamResponse | None = None
        try:
            async with self._client.request(
                request.method, url, params=request.query, data=body or None, headers=headers
            ) as got:
                answer = web.StreamResponse(status=got.status)
                for key, value in got.headers.items():
                    if key.lower() not in _HOPS or key.lower() == "content-encoding":
                        answer.headers.add(key, value)
                await answer.prepare(request)
                async for chunk in got.content.iter_any():
                    await answer.write(chunk)
                await answer.write_eof()
                return answer
        except aiohttp.ClientError as error:
            if answer is None:
                return web.json_response(_error(f"{type(error).__name__}: {error}"), status=502)
            if request.transport is not None:  # half an answer must not look like a whole one
                request.transport.abort()
            return answer


async def _listen(runner: "web.AppRunner", socket: Path | None) -> None:
    from aiohttp import web

    if socket is None:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return
    # A socket's path is 108 bytes at most: the folder is named by its descriptor.
    folder = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        await web.UnixSite(runner, f"/proc/self/fd/{folder}/{socket.name}").start()
        socket.chmod(0o666)  # the program has a uid of its own
    finally:
        os.close(folder)


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": None}}
