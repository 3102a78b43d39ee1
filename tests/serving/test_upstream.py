"""The connection to who answers: what came before it broke is not lost with it, and the key that it
was shown comes back from nowhere."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx
import pytest

from flywheel.masking import MASK
from flywheel.serving_section import ProviderSection
from serving.limits import Limits
from serving.providers.relay import relay
from serving.refusal import ApiError
from serving.upstream import Reply, Upstream
from tests.serving.scripted_upstream import upstream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
KEY = "sk-of-the-vendor"
T = TypeVar("T")
Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _asked(serve: Served, read: Callable[[Reply], Awaitable[T]]) -> T:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    asking = Upstream(Limits())
    asking.point_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", KEY)
    try:
        async with asking.ask(b"{}") as reply:
            return await read(reply)
    finally:
        await asking.close()
        server.close()


async def _cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"{}")
    writer.write(HEAD + b"7\r\ndata: 1\r\n")
    await writer.drain()
    writer.close()


async def _late(reply: Reply) -> tuple[bytes, str]:
    # The end comes before anybody reads.
    await asyncio.sleep(0.2)
    came = await reply.piece()
    try:
        await reply.piece()
    except ApiError as error:
        return came, error.code or ""
    return came, "no error"


def test_what_came_before_a_cut_is_read_and_then_the_cut_is_told() -> None:
    assert asyncio.run(_asked(_cut, _late)) == (b"data: 1", "engine_cut")


def test_a_key_that_comes_in_two_pieces_is_masked() -> None:
    async def scenario() -> list[bytes]:
        read = asyncio.Event()

        async def halves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            writer.write(HEAD + b"10\r\ndata: sk-of-the-\r\n")
            await read.wait()
            writer.write(b"6\r\nvendor\r\n2\r\n\n\n\r\n0\r\n\r\n")
            await writer.drain()
            writer.close()

        async def pieces(reply: Reply) -> list[bytes]:
            came = [await reply.piece()]
            read.set()
            while piece := await reply.piece():
                came.append(piece)
            return came

        return await _asked(halves, pieces)

    first, *others = asyncio.run(scenario())
    assert first == b"data: " and b"".join(others) == MASK + b"\n\n"


@pytest.mark.parametrize("stream", [False, True])
def test_the_key_comes_back_from_no_relay(stream: bool) -> None:
    repeated = "chat.completion"
    asked = {"messages": [{"role": "user", "content": "hello"}], "model": "any", "stream": stream}
    with upstream() as engine:
        section = ProviderSection(url=engine.url + "/v1", model="gpt-9")
        with relay("vendor", section, repeated) as there:
            to = there.url + "/v1/chat/completions"
            said = httpx.post(to, json=asked, headers={"authorization": f"Bearer {there.key}"})
    assert said.status_code == 200 and "shipped" in said.text
    assert repeated not in said.text and MASK.decode() in said.text
