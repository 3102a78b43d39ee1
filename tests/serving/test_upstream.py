"""The connection to who answers: what came before it broke is not lost with it."""

import asyncio

from serving.limits import Limits
from serving.refusal import ApiError
from serving.upstream import Upstream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def _cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"{}")
    writer.write(HEAD + b"7\r\ndata: 1\r\n")
    await writer.drain()
    writer.close()


async def _read() -> tuple[bytes, str]:
    server = await asyncio.start_server(_cut, "127.0.0.1", 0)
    upstream = Upstream(Limits())
    upstream.point_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        async with upstream.ask(b"{}") as reply:
            # The end comes before anybody reads.
            await asyncio.sleep(0.2)
            came = await reply.piece()
            try:
                await reply.piece()
            except ApiError as error:
                return came, error.code or ""
            return came, "no error"
    finally:
        await upstream.close()
        server.close()


def test_what_came_before_a_cut_is_read_and_then_the_cut_is_told() -> None:
    assert asyncio.run(_read()) == (b"data: 1", "engine_cut")
