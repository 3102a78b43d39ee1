"""One way out of a program without network: a loopback address of the host, under the same name.

Enter: a URL. Leave: a socket's path to be bound into the sandbox, and the command with a forwarder
before it. Invariant: what goes through reaches that host and port, and no other.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from environments.runtimes.bwrap import DOOR, PYTHON
from flywheel.errors import ProjectError

_CHUNK = 65_536
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@contextlib.asynccontextmanager
async def opened(
    url: str | None, command: Sequence[str]
) -> AsyncIterator[tuple[Path | None, Sequence[str]]]:
    """The socket and the command, for as long as the program runs; without a URL, no socket.

    Raises:
        ProjectError: the URL is no loopback address with a port.
    """
    if url is None:
        yield None, command
        return
    address = urlsplit(url)
    if address.hostname not in _LOOPBACK or address.port is None:
        raise ProjectError(f"door: {url} is no loopback address with a port")
    folder = Path(tempfile.mkdtemp(prefix="flywheel-door-"))
    host, port = address.hostname, address.port
    try:
        server = await asyncio.start_unix_server(
            lambda reader, writer: _pass_on(reader, writer, host, port), folder / "door"
        )
        (folder / "door").chmod(0o666)  # the folder is closed; the program is another user
        inside = Path(__file__).with_name("door_inside.py").read_text(encoding="utf-8")
        async with server:
            yield folder / "door", [PYTHON, "-ISc", inside, str(port), DOOR, *command]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> None:
    try:
        there, answers = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, answers), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()
