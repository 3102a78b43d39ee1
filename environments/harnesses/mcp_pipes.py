"""An MCP server inside a runtime, spoken to through two named pipes of its workspace.

Enter: a runtime and a command. Leave: the streams that the mcp package's client takes. Invariant:
the server runs by the runtime's own `exec`, under its walls and limits, for as long as the block
lasts; when it ends first, the streams end, and how it ended is in `Served.ran`.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from environments.runtimes.contract import Limits, Ran, Runtime

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

LINE = 64 * 2**20
"""Bytes of one message, at most; a server that writes more is taken for broken."""
UNASKED = 10_000
"""Messages of one server that answer nothing (what it logs, asks, or what is no JSON); who says
more is taken for broken: each takes time of the loop that all episodes share."""
_SHELL = 'exec "$@" < "$MCP_IN" > "$MCP_OUT"'
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_ENDS = ("in", "out")
_GRACE_S = 2.0
"""Between the end of a server's input and its end by force."""


@dataclass
class Served:
    """One server while it runs."""

    name: str
    ran: Ran | None = None
    """How it ended. None = it still runs, or was told to end."""
    fault: str | None = None
    """Why it cannot be understood any more."""


@contextlib.asynccontextmanager
async def piped(
    runtime: Runtime,
    command: Sequence[str],
    env: Mapping[str, str],
    limits: Limits,
    served: Served,
) -> AsyncIterator["TransportStreams"]:
    import anyio

    pipes = _Pipes(runtime)
    try:
        running = asyncio.create_task(
            runtime.exec(
                ("sh", "-c", _SHELL, "sh", *command),
                env={**env, "MCP_IN": pipes.names[0], "MCP_OUT": pipes.names[1]},
                limits=limits,
            )
        )
        running.add_done_callback(lambda task: _ended(task, served, pipes))
        heard, to_session = _channel()
        from_session, said = _channel()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_read, pipes.reads, heard, served)
                group.start_soon(_write, pipes.writes, said)
                try:
                    yield to_session, from_session
                finally:
                    group.cancel_scope.cancel()
        finally:
            for stream in (heard, to_session, from_session, said):
                stream.close()
            pipes.end_input()
            await _end(running)
    finally:
        pipes.close()


def _channel() -> tuple[Any, Any]:
    """The end that is sent to, and the end that is received from."""
    import anyio

    return anyio.create_memory_object_stream[Any](0)


class _Pipes:
    """Two named pipes, open on this side before the program opens its own. The workspace is a
    program's: no name of it is followed, and the pipes lie in a folder of a new name."""

    def __init__(self, runtime: Runtime) -> None:
        name = f".mcp-{secrets.token_hex(8)}"
        self.names = [f"{name}/in", f"{name}/out"]
        self._work = os.open(runtime.folder / "work", _FOLDER)
        os.mkdir(name, 0o700, dir_fd=self._work)
        self._folder = os.open(name, _FOLDER, dir_fd=self._work)
        owner = os.fstat(self._work)
        os.fchown(self._folder, owner.st_uid, owner.st_gid)
        for end in _ENDS:
            os.mkfifo(end, 0o600, dir_fd=self._folder)
            os.chown(end, owner.st_uid, owner.st_gid, dir_fd=self._folder, follow_symlinks=False)
        # A pipe opens for writing only where someone reads, and ends where nobody writes: this side
        # holds both ends until the program has opened its own.
        self._held = self._open("in", os.O_RDONLY)
        self.writes = self._open("in", os.O_WRONLY)
        self.reads = self._open("out", os.O_RDONLY)
        self._writer: int | None = self._open("out", os.O_WRONLY)
        self._input: int | None = self.writes

    def _open(self, end: str, how: int) -> int:
        return os.open(end, how | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=self._folder)

    def end_input(self) -> None:
        if self._input is not None:
            os.close(self._input)
            self._input = None

    def end_output(self) -> None:
        """From now on the program's end is the pipe's end."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def close(self) -> None:
        self.end_input()
        self.end_output()
        with contextlib.suppress(OSError):
            for end in _ENDS:
                os.unlink(end, dir_fd=self._folder)
            os.rmdir(self.names[0].partition("/")[0], dir_fd=self._work)
        for descriptor in (self._held, self.reads, self._folder, self._work):
            os.close(descriptor)


def _ended(task: "asyncio.Task[Ran]", served: Served, pipes: _Pipes) -> None:
    pipes.end_output()
    if task.cancelled():
        return
    failure = task.exception()
    if failure is not None:
        served.fault = f"{type(failure).__name__}: {failure}"
    else:
        served.ran = task.result()


async def _end(running: "asyncio.Task[Ran]") -> None:
    """Its input is at an end: it may leave by itself, for a moment."""
    import anyio

    with anyio.CancelScope(shield=True):
        await asyncio.wait({running}, timeout=_GRACE_S)
        running.cancel()
        await asyncio.wait({running}, timeout=30)


async def _read(descriptor: int, heard: Any, served: Served) -> None:
    import anyio
    import mcp_types
    from mcp.shared.message import SessionMessage

    line, unasked = bytearray(), 0
    async with heard:
        while True:
            await anyio.wait_readable(descriptor)
            try:
                chunk = os.read(descriptor, 2**20)
            except BlockingIOError:
                continue
            if not chunk:
                return
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                line += part
                try:
                    message = mcp_types.jsonrpc_message_adapter.validate_json(bytes(line))
                    unasked += hasattr(message, "method")
                    await heard.send(SessionMessage(message))
                except ValueError as error:
                    unasked += 1
                    await heard.send(error)
                line.clear()
                if unasked > UNASKED:
                    served.fault = f"it wrote more than {UNASKED} messages that answer nothing"
                    return
            line += rest
            if len(line) > LINE:
                served.fault = f"it wrote one message of more than {LINE} bytes"
                return


async def _write(descriptor: int, said: Any) -> None:
    import anyio

    async with said:
        async for message in said:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            left = memoryview(text.encode() + b"\n")
            while left:
                try:
                    left = left[os.write(descriptor, left) :]
                except BlockingIOError:
                    await anyio.wait_writable(descriptor)
                except OSError:  # nobody reads any more: the reader's end says so too
                    return
