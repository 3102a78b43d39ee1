"""OpenAI's chat completions: the form inside, so that nothing is turned."""

from serving.capture import Asked
from serving.chat import Chat
from serving.keys import Caller
from serving.limits import Limits
from serving.refusal import ApiError

DONE = b"data: [DONE]\n\n"


class ChatDialect:
    """Implements `contract.Dialect`."""

    name, prefix, recorded = "chat.completions", "chatcmpl-", True

    def read(self, body: bytes, limits: Limits, caller: Caller) -> Chat:
        return Chat(body, limits)

    def whole(self, asked: Asked, body: bytes) -> bytes:
        return body

    def stream(self, asked: Asked) -> "SpeakingChat":
        return SpeakingChat()

    def refuse(self, error: ApiError) -> bytes:
        return error.body()


class SpeakingChat:
    """Implements `contract.Speaking`."""

    def say(self, event: bytes) -> bytes:
        return b"data: " + event + b"\n\n"

    def comment(self, event: bytes) -> bytes:
        return event + b"\n\n"

    def end(self) -> bytes:
        return DONE

    def fail(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"
