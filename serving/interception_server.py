"""An ASGI application behind a socket of its own, in the loop of who asks for it.

It ends with the block: what is under way then has a moment to finish.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from socket import socket as Socket
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from serving.listening import Web, listen

_DRAIN_S = 1


class Address(NamedTuple):
    url: str
    socket: Path | None
    """A Unix socket that answers the same."""


@contextlib.asynccontextmanager
async def serve(application: ASGIApp, socket: Path | None = None) -> AsyncIterator[Address]:
    """On a free port of the loopback address, and at `socket` where one is given.

    Raises:
        Busy: it cannot listen.
    """
    with listen("127.0.0.1", 0) as listening:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(_running(Web(_config(application)), [listening]))
            if socket is not None:
                web = Web(_config(application, str(socket)))
                await stack.enter_async_context(_running(web, None))
                stack.callback(socket.unlink, missing_ok=True)
            yield Address(listening.url, socket)


def _config(application: ASGIApp, path: str | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        uds=path,
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_DRAIN_S,
        backlog=1024,
    )


@contextlib.asynccontextmanager
async def _running(web: Web, sockets: list[Socket] | None) -> AsyncIterator[None]:
    task = asyncio.create_task(web.serve(sockets))
    try:
        while not web.started:
            if task.done():
                task.result()
                raise RuntimeError("the server ended before it listened")
            await asyncio.sleep(0.001)
        yield
    finally:
        web.stop()
        await task
