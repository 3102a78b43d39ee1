"""A provider that speaks Anthropic's Messages, behind the chat form.

`anthropic_request` has the way out, `anthropic_answer` the way back. A client that speaks Messages
itself gets and gives its own words: only the model's name is changed.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.chat import Chat
from serving.providers.anthropic_answer import MessagesStream, whole_answer
from serving.providers.anthropic_request import request_of
from serving.providers.contract import Turned, Turning

_VERSION = "2023-06-01"


class AnthropicProtocol:
    """Implements `contract.Protocol`."""

    route = "/messages"

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {})}

    def ask(self, chat: Chat, model: str) -> Turned:
        if _native(chat):
            assert chat.native is not None
            fields: dict[str, Any] = {**chat.native.fields, "model": model}
            return Turned(msgspec.json.encode(fields))
        fields, left_out = request_of(chat)
        return Turned(msgspec.json.encode({"model": model, **fields}), left_out)

    def whole(self, chat: Chat, body: bytes) -> bytes:
        return whole_answer(body, native=_native(chat))

    def stream(self, chat: Chat) -> Turning | None:
        return MessagesStream(native=_native(chat))


def _native(chat: Chat) -> bool:
    return chat.native is not None and chat.native.protocol == "anthropic"
