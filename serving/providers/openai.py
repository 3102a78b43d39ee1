"""A provider that speaks OpenAI's chat completions: the form inside, so that little is turned.

Nothing of ours is asked for: no token ids, no log-probabilities that the client did not want, no
bound on the answer's length. Only a stream's usage is, which would be lost otherwise.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.chat import Chat
from serving.providers.contract import Turned, Turning

_OURS = ("return_token_ids",)
"""Fields of engines like ours, which providers refuse."""
_ENGINES = ("is_error", "reasoning_content")
"""The same of messages, where a dialect of ours wrote them and no client did."""


class OpenAIProtocol:
    """Implements `contract.Protocol`."""

    route = "/chat/completions"

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def ask(self, chat: Chat, model: str) -> Turned:
        fields: dict[str, Any] = {**chat.fields, "model": model}
        for name in _OURS:
            fields.pop(name, None)
        if chat.turned:
            fields["messages"] = [_known(message) for message in chat.request.messages]
        if chat.streamed:
            fields["stream_options"] = {
                **(chat.request.stream_options or {}),
                "include_usage": True,
            }
        return Turned(msgspec.json.encode(fields))

    def whole(self, chat: Chat, body: bytes) -> bytes:
        return body

    def stream(self, chat: Chat) -> Turning | None:
        return None


def _known(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in _ENGINES}
