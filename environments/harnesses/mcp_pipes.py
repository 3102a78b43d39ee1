"""An MCP server inside a runtime, spoken to through two named pipes of its workspace.

Enter: a runtime and a command. Leave: the streams that the mcp package's client takes. Invariant:
the server runs by the runtime's own `exec`, under its walls and limits, for as long as the block
lasts; when it ends first, the streams end, and how it ended is in `Served.ran`.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from environments.runtimes.contract import Limits, Ran, Runtime

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

FOLDER = ".mcp"
LINE = 64 * 2**20
"""Bytes of one message, at most; a server that writes more is taken for broken."""
_SHELL = 'exec "$@" < "$MCP_IN" > "$MCP_OUT"'
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

    pipes = _Pipes(runtime, served.name)
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
    """Two named pipes, open on this side before the program opens its own."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        folder = runtime.folder / FOLDER
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        self.paths = [folder / f"{name}.{end}" for end in ("in", "out")]
        self.names = [f"{FOLDER}/{path.name}" for path in self.paths]
        for path in self.paths:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            path.chmod(0o666)  # the program has a uid of its own
        into, out = self.paths
        # A pipe opens for writing only where someone reads, and ends where nobody writes: this side
        # holds both ends until the program has opened its own.
        self._held = [os.open(into, os.O_RDONLY | os.O_NONBLOCK)]
        self.writes = os.open(into, os.O_WRONLY | os.O_NONBLOCK)
        self.reads = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
        self._writer: int | None = os.open(out, os.O_WRONLY | os.O_NONBLOCK)
        self._input: int | None = self.writes

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
        for descriptor in (*self._held, self.reads):
            os.close(descriptor)
        for path in self.paths:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.paths[0].parent.rmdir()


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

    line = bytearray()
    async with heard:
        while True:
            await anyio.wait_readable(descriptor)
            chunk = os.read(descriptor, 2**20)
            if not chunk:
                return
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                line += part
                try:
                    message = mcp_types.jsonrpc_message_adapter.validate_json(bytes(line))
                    await heard.send(SessionMessage(message))
                except ValueError as error:
                    await heard.send(error)
                line.clear()
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
