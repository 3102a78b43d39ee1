"""What comes back over HTTP while it comes, whoever carries it (`plain_http`, `secure_http`)."""

from collections.abc import Mapping
from typing import Protocol


class Unreachable(Exception):
    """No connection came about."""


class Broken(Exception):
    """The other side broke off, or spoke no HTTP."""

    def __init__(self, why: str, *, begun: bool) -> None:
        """`begun`: whether anything of an answer had come."""
        super().__init__(why)
        self.begun = begun


class Arriving(Protocol):
    """An answer whose headers are there. `close` hangs up on what is unread."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in lower case, or however written."""
        ...

    @property
    def ended(self) -> bool:
        """Whether its last byte has come."""
        ...

    async def some(self) -> bytes:
        """What came since the last call; empty at the end.

        Raises:
            Broken, TimeoutError: once all that had come was given.
        """
        ...

    def close(self) -> None: ...


class Carrying(Protocol):
    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Arriving:
        """
        Raises:
            Unreachable, Broken, TimeoutError
        """
        ...

    async def close(self) -> None: ...
