"""Embeddings, passed through to whatever serves the deployment and back.

Enters a request in OpenAI's form; leaves the answer with our model's name. It takes its turn,
counts against limits and is told to whoever listens, and it is not recorded: there is no answer in
it that could be graded or learnt from.
"""

import time
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from flywheel.lineage import Deployment
from serving import wire
from serving.answer import LARGEST_COUNT
from serving.inference import Inference
from serving.keys import Caller
from serving.limits import decode
from serving.observing import Seen
from serving.refusal import ApiError, Headers, invalid
from serving.seeing import code_of, end_of
from serving.upstream_errors import NotLoaded

_JSON = (b"content-type", b"application/json")


class EmbeddingsRequest(Struct, frozen=True):
    model: str
    input: str | list[Any]


class _Answer(Struct):
    usage: dict[str, Any] | None = None


_request = msgspec.json.Decoder(EmbeddingsRequest)
_answer = msgspec.json.Decoder(_Answer)
_fields = msgspec.json.Decoder(dict[str, Raw])


class Embeddings:
    """An ASGI endpoint; shares its parts with the one at which models answer."""

    def __init__(self, inference: Inference) -> None:
        self._parts = inference

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts, caller = self._parts, scope["flywheel.caller"]
        named: Headers = [(b"x-request-id", scope["flywheel.request_id"].encode())]
        seen = Seen(project="", deployment="", end="refused", at=0, dialect="embeddings")
        seen = replace(seen, caller=caller.name)
        failure: BaseException | None = None
        parts.counts["requests"] += 1
        try:
            body = await wire.read_body(scope["flywheel.headers"], receive, parts.limits)
            asked = decode(body, _request, parts.limits.depth)
            way = parts.following.resolve(asked.model, caller)
            seen = replace(seen, project=way.project, deployment=way.name)
            named.append((b"x-flywheel-deployment", way.name.encode()))
            said, seen = await self._in_turn(caller, way, body, receive, named, seen)
            await wire.answer(send, 200, _named(said, way), [_JSON, *named])
            parts.counts["answered"] += 1
        except wire.HungUp as error:
            failure = error
            parts.counts["hung_up"] += 1
        except ApiError as error:
            failure = error
            parts.counts[f"refused_{error.status}"] += 1
            await wire.refuse(send, error, named)
        finally:
            end = end_of(failure, begun=False)
            told = replace(seen, end=end, code=code_of(failure), at=time.time_ns())
            parts.observers.tell(told)

    async def _in_turn(
        self,
        caller: Caller,
        way: Deployment,
        body: bytes,
        receive: Receive,
        named: Headers,
        seen: Seen,
    ) -> tuple[bytes, Seen]:
        came = time.time_ns()
        waiting = self._parts.admission.turn(
            caller, way.project, len(body) // 4, lambda: wire.Attended(receive)
        )
        async with waiting as turn:
            began = time.time_ns()
            named += turn.headers
            said = await self._asked(way, body, receive)
            turn.spent = _prompt_tokens(said)
        total = (time.time_ns() - began) / 1e9
        return said, replace(
            seen,
            queued_s=(began - came) / 1e9,
            first_s=total,
            total_s=total,
            input_tokens=turn.spent,
        )

    async def _asked(self, way: Deployment, body: bytes, receive: Receive) -> bytes:
        """
        Raises:
            ApiError: it could not be asked, or serves none.
        """
        fields = _fields.decode(body)
        try:
            async with (
                wire.Attended(receive),
                self._parts.backends.relay(way, "/embeddings", fields) as reply,
            ):
                said = await reply.read()
            _answer.decode(said)
            return said
        except NotLoaded as error:
            text = f"what serves {way.name} makes no embeddings: {error.message}"
            raise invalid(text, "model", "not_supported") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"the answer holds no embeddings: {error}"
            raise ApiError(502, text, code="engine_error") from error


def _prompt_tokens(said: bytes) -> int | None:
    count = (_answer.decode(said).usage or {}).get("prompt_tokens")
    return count if isinstance(count, int) and 0 <= count <= LARGEST_COUNT else None


def _named(said: bytes, way: Deployment) -> bytes:
    return msgspec.json.encode({**_fields.decode(said), "model": way.name})
