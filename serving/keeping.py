"""What is kept of a request: its messages without what the project redacts, the conversation that
it goes on with, and whether it is kept at all.

Enters a routed request, and at its end its span; leaves the trace in the journal. Invariant: a
conversation is kept whole or not at all; what is redacted, or not kept, reaches no file.
"""

import asyncio
import contextlib
import logging
from hashlib import blake2b

from flywheel.home import Home
from flywheel.ids import digest_bytes
from flywheel.records import Feedback, Span, Trace
from flywheel.serving_section import CaptureSection
from serving.conversation import Offload
from serving.passing import messages_asked
from serving.recording import NotRecorded, Recording
from serving.redaction import Redaction, redaction_of
from serving.routed import SOURCE, Routed
from serving.stitching import Turns
from serving.terms import Terms
from storage.history import following, history
from storage.privacy.find import policy_of
from storage.privacy.key import secret

_log = logging.getLogger("flywheel.gateway")


class Keeping:
    def __init__(self, home: Home, recording: Recording, terms: Terms) -> None:
        self._recording, self._terms = recording, terms
        self._turns = Turns(home.stitching)
        self._key = home.redaction_key
        self._secret: bytes | None = None
        whole = recording.offload
        self._nowhere = Offload(digest_bytes, text=whole.limit, inline_image=whole.inline_image)
        """Of what is not kept: digests of what is large, and no files."""

    def redaction(self, project: str) -> Redaction | None:
        """Of one request; None = the project redacts nothing."""
        terms = self._terms.of(project)
        rules, personal = terms.capture.redact, "capture" in terms.privacy.at
        if not rules and not personal:
            return None
        if self._secret is None:
            self._secret = secret(self._key)
        return redaction_of(rules, self._secret, policy_of(terms.privacy) if personal else None)

    def feedback(self, said: Feedback) -> Feedback:
        """As it may be kept."""
        redaction = self.redaction(said.project)
        return said if redaction is None else redaction.feedback(said)

    def offload(self, asked: Routed) -> Offload:
        return self._recording.offload if asked.kept else self._nowhere

    # --- in

    def read(self, asked: Routed) -> None:
        """Sets what the record says of the request, and the trace that it is a part of.

        Raises:
            ApiError: 400: one of its messages is none; 503: a large one cannot be stored.
        """
        capture, request = self._capture(asked.deployment.project), asked.chat.request
        said = request.messages
        if not asked.dialect.recorded:
            asked.kept, asked.messages = False, messages_asked(said, self._nowhere)
            return
        if (redaction := asked.redaction) is not None:
            # Tools are the same in all of a conversation, which grows: they come first.
            tools = redaction.value(request.tools)
            said = redaction.value(said)
            asked.redacted = said is not request.messages or tools is not request.tools
        try:
            # Where it may not be kept, nothing may be stored before that is known.
            asked.kept = capture.sample == 1
            asked.messages = messages_asked(said, self.offload(asked))
            if asked.conversation is not None or capture.stitch:
                self._stitch(asked)
            if not asked.kept and _place(asked) < capture.sample:
                asked.kept = True
                asked.messages = messages_asked(said, self.offload(asked))
        except NotRecorded as error:
            raise self._recording.refusal(error) from error

    async def ready(self, asked: Routed) -> None:
        """
        Raises:
            ApiError: 503: it could not be recorded.
        """
        if asked.kept:
            await self._recording.ready()
        elif asked.dialect.recorded:
            self._recording.counts["not_sampled"] += 1

    def store_body(self, asked: Routed, body: bytes) -> None:
        """Begins to store the request as its client sent it, beside the record's form of it."""
        if asked.kept:
            asked.storing = asyncio.ensure_future(asyncio.to_thread(self._stored, asked, body))
            asked.storing.add_done_callback(_looked_at)

    # --- and out

    def write(self, asked: Routed, span: Span) -> None:
        """
        Raises:
            NotRecorded: it could not be, and the project wants no such answers.
        """
        if asked.kept:
            self._recording.keep_or_count(
                Trace(
                    id=asked.trace_id,
                    project=asked.deployment.project,
                    source=SOURCE,
                    external_id=asked.external_id,
                    origin="production",
                    spans=(span,),
                    conversation=asked.external_id,
                    user=asked.user,
                    tenant=asked.whose.tenant,
                    consent=asked.whose.consent,
                    expires=asked.whose.expires,
                    raw=asked.raw,
                )
            )
        self._remember(asked, span)

    async def settled(self, asked: Routed) -> None:
        """Returns when the record is where the project wants it before an answer's last byte.

        Raises:
            ApiError: 503: the disk failed.
        """
        if asked.kept and self._capture(asked.deployment.project).sync == "strict":
            await self._recording.synced()

    def close(self) -> None:
        self._turns.close()

    def _capture(self, project: str) -> CaptureSection:
        return self._terms.of(project).capture

    def _stored(self, asked: Routed, body: bytes) -> str:
        return self._recording.offload.put(
            body if asked.redaction is None else asked.redaction.body(body)
        )

    def _stitch(self, asked: Routed) -> None:
        project, named = asked.deployment.project, asked.conversation
        within = ("in", named) if named is not None else ("by", asked.caller, asked.user or "")
        past = history((project, *within), asked.messages)
        asked.history = past.whole
        try:
            turn = self._turns.find(past.answered)
        except OSError as error:
            self._unstitched(error)
            return
        if turn is not None:
            asked.parents = (turn.span,)
            asked.root = turn.root if named is None else None

    def _remember(self, asked: Routed, span: Span) -> None:
        if asked.history is None or span.call is None:
            return
        root = asked.root or asked.response_id
        with contextlib.suppress(OSError):
            for choice in span.call.choices:
                if choice.message.parts:
                    self._turns.add(following(asked.history, choice.message), root, span.id)

    def _unstitched(self, error: OSError) -> None:
        if not self._recording.counts["unstitched"]:
            _log.error("conversations cannot be known by their messages: %s", error)
        self._recording.counts["unstitched"] += 1


def _place(asked: Routed) -> float:
    """Where its conversation falls between 0 and 1: at each request, in each process."""
    said = f"sample\0{asked.deployment.project}\0{asked.external_id}".encode()
    return int.from_bytes(blake2b(said, digest_size=8).digest()) / 2**64


def _looked_at(storing: "asyncio.Future[str]") -> None:
    """Nobody waits for it where the engine failed first."""
    if not storing.cancelled():
        storing.exception()
