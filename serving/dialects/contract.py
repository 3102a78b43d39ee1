"""What a client's protocol is to the gateway: a way into the chat form and a way back.

The chat form (OpenAI's chat completions as vLLM has them, with token ids) is the one inside:
routing, admission, engines, capture and grading know no other. A dialect turns a client's body into
it and the answer, whole or event by event, back. Invariant: what the dialect has no word for passes
through untouched, in both directions: where a provider speaks the client's protocol too, both get
the other's own words by way of `Chat.native` and `chat.NATIVE`.
"""

from typing import Protocol

from serving.capture import Asked
from serving.chat import Chat
from serving.keys import Caller
from serving.limits import Limits
from serving.refusal import ApiError


class Speaking(Protocol):
    """One stream on its way back to its client."""

    def say(self, event: bytes) -> bytes:
        """The client's bytes for one event of the chat form: the JSON of a chunk, already
        rewritten for this client (`answer.Rewrite`). b"" = nothing yet."""

    def comment(self, event: bytes) -> bytes:
        """An event without data, which keeps the line alive."""

    def end(self) -> bytes:
        """What says that this was all; sent once the answer is recorded."""

    def fail(self, error: ApiError) -> bytes:
        """What says, amid the stream, that it broke off."""


class Dialect(Protocol):
    name: str
    """Of the span that a call is recorded as: "chat.completions", "responses", …"""
    prefix: str
    """Of the response ids that the gateway mints: `chatcmpl-`, `resp_`, `msg_` …"""
    recorded: bool
    """False = the model is only asked about, and its answer read by nobody."""

    def read(self, body: bytes, limits: Limits, caller: Caller) -> Chat:
        """The request, checked, in the chat form.

        Raises:
            ApiError: 400: what is wrong with it, in the field names of this protocol.
        """

    def whole(self, asked: Asked, body: bytes) -> bytes:
        """The client's answer out of the chat form's."""

    def stream(self, asked: Asked) -> Speaking: ...

    def refuse(self, error: ApiError) -> bytes:
        """The body of an error in this protocol's shape."""
