"""OpenAI's Responses: the way in is `responses_request`'s, the events are `responses_stream`'s.

What a response leaves is remembered for `previous_response_id`, unless its client says `store:
false` or the project redacts: then it says `store: false` itself. It is known to the key that asked
for it alone.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from flywheel.errors import FlywheelError
from serving.capture import Asked
from serving.chat import Chat
from serving.dialects.blocks import blocks_of, first_choice
from serving.dialects.responses_request import Earlier, ResponsesChat, chat_of
from serving.dialects.responses_stream import SpeakingResponses
from serving.dialects.responses_words import message_left, output, response
from serving.keys import Caller
from serving.limits import Limits
from serving.refusal import ApiError, invalid
from storage.remembered import Remembered

_log = logging.getLogger("flywheel.gateway")
_earlier = msgspec.json.Decoder(Earlier)
_SEEN = {"id", "object", "created", "model", "choices", "usage", "service_tier"}


class ResponsesDialect:
    """Implements `contract.Dialect`."""

    name, prefix, recorded = "responses", "resp_", True

    def __init__(self, remembered: Remembered | None = None) -> None:
        """`remembered`: None = nothing is."""
        self._remembered = remembered

    def read(self, body: bytes, limits: Limits, caller: Caller) -> Chat:
        return chat_of(body, limits, lambda named: self._recall(named, caller.name))

    def whole(self, asked: Asked, body: bytes) -> bytes:
        said: dict[str, Any] = msgspec.json.decode(body)
        choice = first_choice(said)
        blocks = blocks_of(choice["message"])
        items = output(asked.response_id, blocks, _logprobs(choice))
        more = {key: value for key, value in said.items() if key not in _SEEN}
        answer = response(asked, items, choice.get("finish_reason"), said.get("usage"), more)
        return self.kept(asked, answer, message_left(blocks))

    def stream(self, asked: Asked) -> SpeakingResponses:
        return SpeakingResponses(asked, self.kept)

    def refuse(self, error: ApiError) -> bytes:
        return error.body()

    def kept(self, asked: Asked, answer: dict[str, Any], message: dict[str, Any]) -> bytes:
        """The answer, remembered as what it says of itself: `store`."""
        chat = asked.chat
        assert isinstance(chat, ResponsesChat)
        wanted = chat.asked.store is not False and asked.redaction is None
        body = msgspec.json.encode({**answer, "store": wanted and self._remembered is not None})
        if not wanted or self._remembered is None:
            return body
        left = Earlier([*chat.said, message], asked.external_id, asked.project)
        try:
            self._remembered.add(answer["id"], asked.caller, body, msgspec.json.encode(left))
        except FlywheelError as error:
            _log.warning("a response is not remembered: %s", error)
            return msgspec.json.encode({**answer, "store": False})
        return body

    def _recall(self, named: str, owner: str) -> Earlier:
        found = None
        if self._remembered is not None:
            with _readable():
                found = self._remembered.find(named, owner)
        if found is None:
            raise invalid(
                f"previous_response_id: {named[:100]!r} is not remembered: it is too old, another "
                "key's, or was not stored; send the whole conversation as input",
                "previous_response_id",
                "previous_response_not_found",
            )
        return _earlier.decode(found[1])


def _logprobs(choice: dict[str, Any]) -> list[Any] | None:
    said = choice.get("logprobs")
    return said.get("content") if isinstance(said, dict) else None


def again(remembered: Remembered, id: str, owner: str) -> Raw:
    """A response that was given before.

    Raises:
        ApiError: 404: it is not remembered.
    """
    with _readable():
        found = remembered.find(id, owner)
    if found is None:
        raise _unknown(id)
    return Raw(found[0])


def forgotten(remembered: Remembered, id: str, owner: str) -> dict[str, Any]:
    """
    Raises:
        ApiError: 404: it is not remembered.
    """
    with _readable():
        known = remembered.drop(id, owner)
    if not known:
        raise _unknown(id)
    return {"id": id, "object": "response", "deleted": True}


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except FlywheelError as error:
        _log.warning("no response can be remembered: %s", error)
        text = "what was answered cannot be looked up now"
        raise ApiError(503, text, code="not_remembered", retry_after=5) from error


def _unknown(id: str) -> ApiError:
    return ApiError(404, f"no response {id[:100]!r} is remembered", code="response_not_found")
