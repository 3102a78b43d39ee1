"""Runs inside a sandbox, in front of a program: forwards a loopback port to the door.

Enter: port, socket and command line. Leaves: the command's exit code. Invariants: the standard
library alone; the port is open before the command starts; no more than `AT_ONCE` connections are
open at a time, and one more waits.
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable

AT_ONCE = 96
"""More than the calls that an episode may have under way; each costs who holds the door two
descriptors."""
_CHUNK = 65_536
_PAUSE_S = 0.1
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


async def forward(listening: socket.socket, connect: Connect) -> None:
    """Joins each connection that comes with a new one of `connect`, until it is cancelled."""
    turns, joined = asyncio.Semaphore(AT_ONCE), set[asyncio.Task[None]]()

    def over(task: "asyncio.Task[None]") -> None:
        joined.discard(task)
        turns.release()

    try:
        while True:
            await turns.acquire()
            task = asyncio.create_task(_join(await _taken(listening), connect))
            joined.add(task)
            task.add_done_callback(over)
    finally:
        for task in joined:
            task.cancel()
        await asyncio.gather(*joined, return_exceptions=True)


async def _taken(listening: socket.socket) -> socket.socket:
    while True:
        try:
            return (await asyncio.get_running_loop().sock_accept(listening))[0]
        except OSError:  # no descriptor is left: the next one waits for one
            await asyncio.sleep(_PAUSE_S)


async def _join(taken: socket.socket, connect: Connect) -> None:
    reader, writer = await asyncio.open_connection(sock=taken)
    try:
        there, answers = await connect()
    except BaseException as error:
        writer.transport.abort()
        if isinstance(error, OSError):
            return
        raise
    ways = [asyncio.create_task(_copy(*way)) for way in ((reader, answers), (there, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for way in ways:
            way.cancel()
        ends = await asyncio.gather(*ways, return_exceptions=True)
        whole = ends == [None, None]
        for end in (writer, answers):
            end.close() if whole else end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def main(port: int, door: str, command: list[str]) -> int:
    with socket.create_server(("127.0.0.1", port), backlog=AT_ONCE) as listening:
        listening.setblocking(False)
        forwarding = asyncio.create_task(
            forward(listening, lambda: asyncio.open_unix_connection(door))
        )
        try:
            child = await asyncio.create_subprocess_exec(*command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            return 127
        ended = await child.wait()
        forwarding.cancel()
        await asyncio.wait({forwarding})
    return ended if ended >= 0 else 128 - ended


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))
