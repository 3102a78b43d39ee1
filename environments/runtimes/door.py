"""One way out of a program without network: a loopback address of the host, under the same name.

Enter: a URL. Leave: a socket's path to be bound into the sandbox, and the command with a forwarder
before it. Invariants: what goes through reaches that host and port, and no other; when the program
is over, nothing of its connections is left.
"""

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from environments.runtimes import door_inside
from environments.runtimes.bwrap import DOOR, PYTHON
from flywheel.errors import ProjectError

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
        with socket.socket(socket.AF_UNIX) as listening:
            listening.setblocking(False)
            listening.bind(str(folder / "door"))
            listening.listen(door_inside.AT_ONCE)
            (folder / "door").chmod(0o666)  # the folder is closed; the program is another user
            inside = Path(door_inside.__file__).read_text(encoding="utf-8")
            forwarding = asyncio.create_task(
                door_inside.forward(listening, lambda: asyncio.open_connection(host, port))
            )
            try:
                yield folder / "door", [PYTHON, "-ISc", inside, str(port), DOOR, *command]
            finally:
                forwarding.cancel()
                await asyncio.wait({forwarding})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
