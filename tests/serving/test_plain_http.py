"""The client for engines that are near, against servers that behave badly, in both event loops."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from serving.arriving import Broken, Unreachable
from serving.plain_connection import Answer
from serving.plain_http import PlainHttp

OK = b"HTTP/1.1 200 OK\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    def run(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(work)

    return run


class Server:
    """Says `answers` in turn, piece by piece; `None` closes. Counts its connections."""

    def __init__(self, *answers: list[bytes | None]) -> None:
        self.answers, self.connections, self.asked = list(answers), 0, list[bytes]()

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1/x?y=z"
        self.http = PlainHttp(connect_s=5, silence_s=5, total_s=10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        self._server.close()

    async def ask(self) -> Answer:
        return await self.http.post(self.url, {"content-type": "application/json"}, b"{}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                self.asked.append(await reader.readuntil(b"{}"))
                for piece in self.answers.pop(0):
                    if piece is None:
                        writer.close()
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.01)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _whole(answer: Answer) -> bytes:
    said = b""
    try:
        while piece := await answer.some():
            said += piece
    finally:
        answer.close()
    return said


def test_an_answer_in_any_pieces_is_whole_and_its_connection_serves_again(run: Any) -> None:
    chunked = (
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
    )
    sized = OK + b"content-length: 3\r\n\r\nabc"
    early = b"HTTP/1.1 100 Continue\r\n\r\n" + sized
    byte_by_byte = [chunked[at : at + 1] for at in range(len(chunked))]

    async def work() -> None:
        async with Server(list(byte_by_byte), [chunked], [sized], [early]) as server:
            said = [await _whole(await server.ask()) for _ in range(4)]
            assert said == [b"abc0123456789abcdef"] * 2 + [b"abc"] * 2
            assert server.connections == 1
            assert server.asked[0].startswith(b"POST /v1/x?y=z HTTP/1.1\r\nhost: 127.0.0.1:")

    run(work())


def test_what_came_before_a_cut_is_given_and_then_the_cut_is_told(run: Any) -> None:
    async def work(begun: bytes) -> None:
        async with Server([OK + begun + b"abc", None]) as server:
            answer = await server.ask()
            await asyncio.sleep(0.05)
            assert (await answer.some())[-3:] == b"abc"
            with pytest.raises(Broken):
                await answer.some()
            answer.close()

    run(work(b"content-length: 9\r\n\r\n"))
    run(work(b"transfer-encoding: chunked\r\n\r\n9\r\n"))


def test_without_a_length_the_connections_end_is_the_answers(run: Any) -> None:
    async def work() -> None:
        async with Server([OK + b"\r\nabc", b"def", None], [OK + b"\r\n", None]) as server:
            assert await _whole(await server.ask()) == b"abcdef"
            assert await _whole(await server.ask()) == b""
            assert server.connections == 2

    run(work())


def test_a_kept_connection_that_was_closed_costs_no_request(run: Any) -> None:
    sized = OK + b"content-length: 1\r\n\r\na"

    async def work() -> None:
        # The second request meets the end of its connection, and is said on a new one.
        async with Server([sized], [None], [sized]) as server:
            assert await _whole(await server.ask()) == b"a"
            assert await _whole(await server.ask()) == b"a"
            assert (server.connections, len(server.asked)) == (2, 3)
        async with Server([None], [sized]) as server:
            with pytest.raises(Broken) as broken:
                await server.ask()
            assert not broken.value.begun
            # Half an answer is one: it is not asked for again.
        async with Server([sized], [b"HTTP/1.1 2", None], [sized]) as server:
            assert await _whole(await server.ask()) == b"a"
            with pytest.raises(Broken) as broken:
                await server.ask()
            assert broken.value.begun and len(server.asked) == 2

    run(work())


def test_a_connection_that_said_more_than_was_asked_serves_nobody_else(run: Any) -> None:
    sized = OK + b"content-length: 1\r\n\r\na"

    async def work(more: list[bytes | None]) -> None:
        async with Server(more, [sized]) as server:
            assert await _whole(await server.ask()) == b"a"
            await asyncio.sleep(0.05)
            assert await _whole(await server.ask()) == b"a"
            assert server.connections == 2

    run(work([sized + OK + b"content-length: 1\r\n\r\nb"]))
    run(work([sized, OK + b"content-length: 1\r\n\r\nb"]))
    run(work([OK + b"connection: close\r\ncontent-length: 1\r\n\r\na"]))


def test_an_answer_that_is_left_unread_takes_its_connection_along(run: Any) -> None:
    async def work() -> None:
        began = OK + b"content-length: 9\r\n\r\na"
        async with Server([began], [OK + b"content-length: 1\r\n\r\nb"]) as server:
            (await server.ask()).close()
            assert await _whole(await server.ask()) == b"b"
            assert server.connections == 2
            assert len(server.http.open) == 1

    run(work())


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        OK + b"a: " + b"b" * 2**17,
        OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    ],
    ids=["no http", "upgrade", "endless headers", "two lengths"],
)
def test_what_is_no_answer_is_a_broken_one(run: Any, said: bytes) -> None:
    async def work() -> None:
        async with Server([said, None]) as server:
            with pytest.raises(Broken):
                await _whole(await server.ask())

    run(work())


def test_silence_and_length_are_bounded(run: Any) -> None:
    async def work(first: list[bytes | None], silence_s: float, total_s: float) -> None:
        async with Server(first) as server:
            server.http = PlainHttp(connect_s=5, silence_s=silence_s, total_s=total_s)
            with pytest.raises(TimeoutError):
                await _whole(await server.ask())
            await asyncio.sleep(0.01)
            assert not server.http.open

    drip: list[bytes | None] = [b"1\r\na\r\n"] * 200
    head = OK + b"transfer-encoding: chunked\r\n\r\n"
    run(work([], 0.05, 60))
    run(work([head], 0.05, 60))
    run(work([head, *drip], 60, 0.3))


def test_a_reader_that_pauses_is_waited_for(run: Any) -> None:
    size = 2**24

    async def work() -> None:
        async with Server([OK + b"content-length: %d\r\n\r\n" % size, b"a" * size]) as server:
            answer = await server.ask()
            await asyncio.sleep(0.1)
            assert answer.size < size // 2
            assert len(await _whole(answer)) == size

    run(work())


def test_where_nobody_listens_nobody_is_reached(run: Any) -> None:
    async def work() -> None:
        async with Server() as server:
            server._server.close()
            with pytest.raises(Unreachable):
                await server.ask()

    run(work())
