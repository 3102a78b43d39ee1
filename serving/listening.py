"""Sockets taken before anything is started, so that a taken port is said at once, and the server
behind them."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn

from flywheel.errors import Busy, UsageError
from flywheel.serving_section import ServingSection

_DATE_S = 1.0
"""How old the date in an answer's headers may be."""


class Web(uvicorn.Server):
    """Leaves signals to the process that it runs in: uvicorn would kill it at the end. Told to stop
    by `stop`, it need not look ten times a second whether it was."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def stop(self) -> None:
        """Finishes what runs, at most as long as its configuration says. A second time it does not
        wait for that."""
        self.force_exit, self.should_exit = self.should_exit, True
        self._told.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_S):
                    await self._told.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listening(socket.socket):
    certificate: str | None = None
    """PEM file of the certificate that is shown on it; None = no TLS."""

    @property
    def url(self) -> str:
        host, port = self.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_tls(serving: ServingSection) -> None:
    """
    Raises:
        UsageError: [serving] names one of two files, or what lies there is no certificate and its
            key.
    """
    if (serving.tls_cert is None) != (serving.tls_key is None):
        raise UsageError("[serving] tls_cert and tls_key go together: one of them is missing")
    if serving.tls_cert is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            serving.tls_cert, serving.tls_key, password=_no_password
        )
    except (OSError, ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"[serving] tls_cert {serving.tls_cert} and tls_key {serving.tls_key} are no PEM "
            f"certificate and its key: {error}"
        ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted with a password; give one that is not")


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
