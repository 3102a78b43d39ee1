"""Sockets taken before anything is started, so that a taken port is said at once, and the server
behind them."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from flywheel.errors import Busy


class Web(uvicorn.Server):
    """Leaves signals to the process that it runs in: uvicorn would kill it at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listening(socket.socket):
    @property
    def url(self) -> str:
        host, port = self.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[Listening]:
    """
    Raises:
        Busy: the port is taken, or may not be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with Listening(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(1024)
        except (OSError, OverflowError) as error:
            raise Busy(
                f"cannot listen on {host}:{port}: {error}. If another program has it, choose "
                "another port with --port"
            ) from error
        yield listening
