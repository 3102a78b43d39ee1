"""10,000 requests while the gateway is killed at random: nothing that was answered is lost.

A client counts as answered from the moment that it saw how its answer ended, be it in the middle of
a chunk that was the last one before the kill.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flywheel.home import Home
from storage.committer import commit
from storage.database import reading
from tests.serving.running import route

REQUESTS, CLIENTS, PROCESSES, KILLS = 10_000, 16, 2, 8
ROOT = Path(__file__).resolve().parents[2]
IDS = re.compile(rb'"id":\s*"(chatcmpl-[0-9a-z]+)"')
FINISHED = re.compile(rb'"finish_reason":\s*"stop"')


class Engine(asyncio.Protocol):
    """As little HTTP as the gateway's own client needs: the test is about the gateway."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._out, self._in = transport, b""

    def data_received(self, data: bytes) -> None:
        self._in += data
        while (end := self._in.find(b"\r\n\r\n")) >= 0:
            found = re.search(rb"(?i)content-length: *(\d+)", self._in[:end])
            size = end + 4 + int(found[1] if found else 0)
            if len(self._in) < size:
                return
            body, self._in = self._in[end + 4 : size], self._in[size:]
            self._out.write(_stream() if b'"stream":true' in body else _whole())


def _whole() -> bytes:
    message = {"role": "assistant", "content": "It is shipped."}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [1, 2]}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    said = json.dumps({"choices": [choice], "usage": usage, "prompt_token_ids": [5, 6, 7]}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(said) + said


def _stream() -> bytes:
    deltas = [({"content": "It is "}, None), ({"content": "shipped."}, None), ({}, "stop")]
    events = [
        b"data: %b\n\n" % json.dumps({"choices": [{"delta": one, "finish_reason": why}]}).encode()
        for one, why in deltas
    ]
    chunks = [b"%x\r\n%b\r\n" % (len(one), one) for one in [*events, b"data: [DONE]\n\n", b""]]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    return head + b"\r\n" + b"".join(chunks)


class Load:
    def __init__(self, port: int) -> None:
        self._port = port
        self._next = iter(range(REQUESTS))
        self.answered: set[str] = set()
        self.broken = 0

    async def client(self) -> None:
        """Sends until all were sent; what breaks off is not sent again."""
        with contextlib.suppress(StopIteration):
            while True:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    while True:
                        await self._one(next(self._next), reader, writer)
                self.broken += 1
                writer.close()

    async def _one(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        said = {"role": "user", "content": f"question {number}"}
        request = {"model": "support", "messages": [said], "stream": number % 4 == 0}
        body = json.dumps(request).encode()
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n"
        )
        writer.write(head % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = re.search(rb"content-length: (\d+)", head)
        if length:
            self._saw(await reader.readexactly(int(length[1])))
            return
        seen = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            seen += await reader.readexactly(size)
            self._saw(seen)
            await reader.readexactly(2)
        await reader.readexactly(2)

    def _saw(self, answer: bytes) -> None:
        if FINISHED.search(answer):
            found = IDS.search(answer)
            assert found is not None
            self.answered.add(found[1].decode())


def _gateway(home: Home, engine: int, listening: socket.socket) -> "subprocess.Popen[bytes]":
    handle = str(listening.fileno())
    arguments = [str(home.root), f"http://127.0.0.1:{engine}", handle]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.serving.killed_gateway", *arguments],
        pass_fds=[listening.fileno()],
        stdin=subprocess.PIPE,
        cwd=ROOT,
    )


async def _under_kills(home: Home, seed: int) -> Load:
    dice = random.Random(seed)
    engine = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0)
    port = engine.sockets[0].getsockname()[1]
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        load = Load(listening.getsockname()[1])
        running = [_gateway(home, port, listening) for _ in range(PROCESSES)]
        sending = asyncio.gather(*[load.client() for _ in range(CLIENTS)])
        at = sorted(dice.sample(range(REQUESTS // 20, REQUESTS * 9 // 10), KILLS))
        try:
            while not sending.done():
                await asyncio.sleep(0.004 * dice.random())
                if at and len(load.answered) >= at[0]:
                    del at[0]
                    place = dice.randrange(PROCESSES)
                    running[place].send_signal(signal.SIGKILL)
                    await asyncio.to_thread(running[place].wait)
                    running[place] = _gateway(home, port, listening)
            await sending
        finally:
            for child in running:
                child.kill()
                child.wait()
                if child.stdin:
                    child.stdin.close()
        engine.close()
    assert not at
    return load


@pytest.mark.slow
def test_nothing_answered_is_lost_to_kills(tmp_path: Path) -> None:
    home = Home(tmp_path)
    route(home)
    load = asyncio.run(_under_kills(home, seed=os.getpid()))
    assert len(load.answered) > REQUESTS - CLIENTS * (KILLS + 1)
    assert load.broken >= KILLS, "kills met requests under way"
    report = commit(home)
    with reading(home) as database:
        assert database is not None
        kept = {span for (span,) in database.execute("SELECT id FROM spans").fetchall()}
    assert load.answered <= kept
    assert len(kept) <= REQUESTS and report.quarantined <= KILLS + PROCESSES
