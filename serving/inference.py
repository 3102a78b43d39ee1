"""Where a model is asked: who is let in, which deployment answers, and where the record goes.

How an answer passes from the engine to its client is `serving.passing`'s. Calls of one
conversation have one trace id; the committer joins their spans.
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.types import Receive, Scope, Send

from flywheel.errors import FlywheelError
from flywheel.ids import new_ulid
from flywheel.records import Span
from serving import wire
from serving.admission import Admission
from serving.answer import Answer
from serving.backends import Backends
from serving.chat import Chat
from serving.choosing import choose, drawing
from serving.dialects import DIALECTS
from serving.dialects.contract import Dialect
from serving.following import Following
from serving.keeping import Keeping
from serving.keys import Caller
from serving.limits import Limits
from serving.observing import Observers
from serving.passing import Passing, Replying, apart, recorded, why_of
from serving.recording import NotRecorded, Recording
from serving.refusal import ApiError, Headers
from serving.routed import Routed
from serving.seeing import answered, turned_away
from serving.shadow import Shadows
from serving.state import EngineState
from serving.whose import whose

_TRACEPARENT = 128
"""Characters of that header, at most; version 00 has 55."""


class Inference(Passing[Routed]):
    """An ASGI endpoint: one for every dialect that a model is asked in."""

    def __init__(
        self,
        limits: Limits,
        following: Following,
        admission: Admission,
        backends: Backends,
        shadows: Shadows,
        recording: Recording,
        keeping: Keeping,
        engine: EngineState,
        observers: Observers,
        dialects: Mapping[str, Dialect] = DIALECTS,
    ) -> None:
        self.limits, self.following, self.admission = limits, following, admission
        self.backends, self.recording, self.engine = backends, recording, engine
        self.keeping, self.shadows, self.dialects = keeping, shadows, dialects
        self.observers, self.counts = observers, recording.counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = scope["flywheel.headers"]
        caller: Caller = scope["flywheel.caller"]
        dialect = self.dialects[scope["path"]]
        named = [(b"x-request-id", scope["flywheel.request_id"].encode())]
        self.counts["requests"] += 1
        asked: Routed | None = None
        came = time.time_ns()
        try:
            # Before its turn: who sends slowly holds up only itself.
            body = await wire.read_body(headers, receive, self.limits)
            asked = await self._let_in(dialect, body, scope)
            project = asked.deployment.project
            async with self.admission.turn(
                caller, project, _tokens(asked.chat, body), lambda: wire.Attended(receive)
            ) as turn:
                asked.admitted, asked.turn = turn, time.time_ns()
                named += turn.headers
                self._choose(asked)
                self.shadows.offer(asked, len(body))
                if dialect.name != "chat.completions":
                    self.keeping.store_body(asked, body)
                await self.pass_on(asked, receive, send, named)
        except wire.HungUp as error:
            self.counts["hung_up"] += 1
            self._turned_away(asked, error, dialect, caller, came)
        except ApiError as error:
            self._turned_away(asked, error, dialect, caller, came)
            self.counts[f"refused_{error.status}"] += 1
            named += self.names(asked) if asked else []
            await wire.refuse(send, error, named, dialect.refuse(error))

    def dialect(self, asked: Routed) -> Dialect:
        return asked.dialect

    async def _let_in(self, dialect: Dialect, body: bytes, scope: Scope) -> Routed:
        """All that can be refused is refused here, before anything is spent."""
        headers: dict[bytes, bytes] = scope["flywheel.headers"]
        caller: Caller = scope["flywheel.caller"]
        chat = await apart(body, lambda: dialect.read(body, self.limits, caller))
        deployment = self.following.resolve(chat.request.model, caller)
        header = headers.get(b"x-conversation-id")
        route = self.following.route_as_known(chat.request.model)
        self.backends.must_be_there(deployment, route)
        redaction = self.keeping.redaction(deployment.project)
        clean = redaction.name if redaction else str
        named = chat.conversation(None if header is None else _text(header))
        user = chat.user()
        owner = whose(headers, chat.request.metadata, caller, self.limits.identifier)
        asked = Routed(
            chat=chat,
            dialect=dialect,
            spoken=dialect.name,
            caller=caller.name,
            messages=(),
            answers=deployment.name,
            deployment=deployment,
            route=route,
            response_id=f"{dialect.prefix}{new_ulid().lower()}",
            request_id=scope["flywheel.request_id"],
            conversation=None if named is None else clean(named),
            user=None if user is None else clean(user),
            whose=owner._replace(tenant=owner.tenant and clean(owner.tenant)),
            start=time.time_ns(),
            template_digest=None if chat.bare else self.engine.template_digest,
            tokenizer_digest=self.engine.tokenizer_digest,
            redaction=redaction,
            traceparent=_traceparent(headers),
            parents=(chat.after[1],) if chat.after and chat.after[0] == deployment.project else (),
            terms=self.admission.terms.of(deployment.project),
        )
        await apart(body, lambda: self.keeping.read(asked))
        await self.keeping.ready(asked)
        return asked

    def _choose(self, asked: Routed) -> None:
        """By the routing as it stands when its turn has come."""
        if asked.admitted is not None and asked.admitted.waited:
            asked.route = self.following.route(asked.chat.request.model)
        if asked.route is None:
            return
        chosen = choose(asked.route, asked.conversation or asked.user or asked.external_id)
        asked.deployment, asked.answers = chosen.deployment, chosen.deployment.name
        asked.probability = chosen.probability
        if asked.route.challenger is not None and asked.route.share:
            asked.notes["drawn"] = drawing(asked.route, chosen.deployment)

    def ask(self, asked: Routed) -> AbstractAsyncContextManager[Replying]:
        return self.backends.ask(asked) if asked.storing is None else self._stored(asked)

    @asynccontextmanager
    async def _stored(self, asked: Routed) -> AsyncIterator[Replying]:
        """Its body is stored while the engine works."""
        assert asked.storing is not None
        async with self.backends.ask(asked) as reply:
            try:
                asked.raw = await asked.storing
            except NotRecorded as error:
                raise self.recording.refusal(error) from error
            yield reply

    def record(self, asked: Routed, answer: Answer | None, failure: BaseException | None) -> None:
        """
        Raises:
            ApiError: it could not be recorded, and the project wants no such answers.
        """
        why = None if failure is None else why_of(failure)
        span: Span | None = None
        try:
            span = recorded(asked, answer, why, self.keeping.offload(asked))
            self.keeping.write(asked, span)
        except NotRecorded as failed:
            if failure is None:
                failure = self.recording.refusal(failed)
                raise failure from failed
        finally:
            _settle(asked, span, failure)
            self.observers.tell(answered(asked, span, answer, failure))

    async def settled(self, asked: Routed) -> None:
        await self.keeping.settled(asked)

    def _turned_away(
        self, asked: Routed | None, error: Exception, dialect: Dialect, caller: Caller, at: int
    ) -> None:
        """Whoever had its turn was told of as its record was written."""
        if asked is None or asked.turn is None:
            self.observers.tell(
                turned_away(asked, error, dialect=dialect.name, caller=caller.name, at=at)
            )

    def names(self, asked: Routed) -> Headers:
        deployment = (b"x-flywheel-deployment", asked.deployment.name.encode())
        return (
            [(b"x-flywheel-trace-id", asked.trace_id.encode()), deployment]
            if asked.kept
            else [deployment]
        )


def _settle(asked: Routed, span: Span | None, failure: BaseException | None) -> None:
    """What it really took: where nobody counted, what was reserved for it stands."""
    usage = span.call.usage if span and span.call else None
    if asked.admitted is None or usage is None:
        return
    if usage.input_tokens is not None and usage.output_tokens is not None:
        asked.admitted.spent = usage.input_tokens + usage.output_tokens
    elif asked.first_byte is None and isinstance(failure, FlywheelError):
        asked.admitted.spent = 0


def _tokens(chat: Chat, body: bytes) -> int:
    """What it can be expected to cost: a token has four bytes or so; the end settles it."""
    return len(body) // 4 + chat.choices * chat.longest


def _traceparent(headers: dict[bytes, bytes]) -> str | None:
    given = headers.get(b"traceparent")
    return given.decode("latin-1") if given is not None and len(given) <= _TRACEPARENT else None


def _text(header: bytes) -> str:
    try:
        return header.decode("utf-8")
    except UnicodeDecodeError:
        return header.decode("latin-1")
