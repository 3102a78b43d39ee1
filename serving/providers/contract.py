"""What a provider's protocol is to the gateway: the chat form on its way out and back.

The mirror of a dialect. Enters a request in the chat form; leaves the vendor's body, and its answer
in the chat form again, whole or event by event. Where the client speaks the same protocol, both get
the other's own words (`Chat.native`). Invariant: what a vendor has no word for is refused or noted,
never dropped unsaid.
"""

from collections.abc import Mapping
from typing import NamedTuple
from typing import Protocol as Interface

from serving.chat import Chat


class Turned(NamedTuple):
    body: bytes
    left_out: tuple[str, ...] = ()
    """Fields of the request that the vendor has no word for and that change no answer's form."""


class Turning(Interface):
    """One stream on its way into the chat form."""

    def feed(self, piece: bytes) -> bytes:
        """The events of the chat form that `piece` completes.

        Raises:
            EngineError: what came is no stream of this protocol.
        """


class Protocol(Interface):
    route: str
    """Below the provider's URL."""

    def headers(self, key: str | None) -> Mapping[str, str]: ...

    def ask(self, chat: Chat, model: str) -> Turned:
        """
        Raises:
            ApiError: 400: the request asks for what this vendor cannot give.
        """

    def whole(self, chat: Chat, body: bytes) -> bytes:
        """
        Raises:
            EngineError: it is no answer of this protocol.
        """

    def stream(self, chat: Chat) -> Turning | None:
        """None = it is the chat form as it comes."""
