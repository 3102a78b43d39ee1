"""Feedback taken in: journalled before we say yes, a repetition told from a change of mind.

It may come before its trace and it may come twice, at any of the gateway's processes. When the
sender says when (`at`), the content decides: the same again is the same record. When not, what was
last said decides: a repetition of it, or of an idempotency key, is the record that it already is;
anything else is a change of mind and gets a later time than what it replaces, so that it
supersedes.
"""

import time
from typing import Any

import msgspec
from starlette.types import Receive, Scope

from flywheel.errors import Busy
from flywheel.home import Home
from flywheel.records import Feedback
from serving import wire
from serving.feedback import feedback_of, read_feedback
from serving.keeping import Keeping
from serving.keys import Caller
from serving.limits import Limits
from serving.recording import NotRecorded, Recording
from serving.refusal import ApiError, invalid
from storage.repeats import Repeats


class FeedbackTaken:
    """`take` is the endpoint: all items of a request are kept, or none where one is wrong."""

    def __init__(
        self, home: Home, recording: Recording, keeping: Keeping, projects: frozenset[str]
    ) -> None:
        self._recording, self._keeping, self._projects = recording, keeping, projects
        self._recent = Recent(Repeats(home))

    async def take(self, scope: Scope, receive: Receive, limits: Limits) -> tuple[int, Any]:
        headers: dict[bytes, bytes] = scope["flywheel.headers"]
        caller: Caller = scope["flywheel.caller"]
        body = await wire.read_body(headers, receive, limits)
        said, listed = read_feedback(body, limits)
        header = headers.get(b"idempotency-key", b"").decode("latin-1") or None
        allowed = frozenset(filter(caller.may, self._projects))
        checked = [
            self._keeping.feedback(
                feedback_of(one, allowed, limits, f"[{place}]: " if listed else "")
            )
            for place, one in enumerate(said)
        ]
        keys = [
            one.idempotency_key or (header and (f"{header}/{place}" if listed else header))
            for place, one in enumerate(said)
        ]
        await self._recording.ready()
        results = self._keep(list(zip(checked, keys, strict=True)))
        return 202, ({"feedback": results} if listed else results[0])

    def _keep(self, said: list[tuple[Feedback, str | None]]) -> list[dict[str, Any]]:
        counts, results = self._recording.counts, []
        try:
            with self._recent.together():
                for feedback, key in said:
                    kept, repeated = self._recent.settle(feedback, key)
                    if not repeated:
                        self._recording.keep(kept)
                        self._recent.keep(kept, key)
                    counts["feedback_repeated" if repeated else "feedback"] += 1
                    results.append({"id": kept.id, "repeated": repeated})
        except NotRecorded as error:
            raise self._recording.refusal(error) from error
        except Busy as error:
            raise ApiError(503, str(error), code="busy", retry_after=1) from error
        return results

    def close(self) -> None:
        self._recent.close()


class Recent:
    """What was said lately without a time: enough to know a repetition from a change of mind."""

    def __init__(self, repeats: Repeats) -> None:
        self._repeats = repeats
        self.together, self.close = repeats.together, repeats.close

    def settle(self, feedback: Feedback, key: str | None) -> tuple[Feedback, bool]:
        """The record to keep, and whether it is one that was already kept."""
        by_key = self._repeats.under(feedback.project, key) if key else None
        if by_key is not None:
            if _timeless(by_key) != _timeless(feedback):
                raise invalid("this idempotency key was used for other content", "idempotency_key")
            return by_key, True
        last = self._repeats.last(feedback)
        if feedback.at:
            return feedback, last == feedback
        if key is None and last is not None and _timeless(last) == _timeless(feedback):
            return last, True
        at = max(time.time_ns(), last.at + 1 if last else 0)
        return msgspec.structs.replace(feedback, at=at), False

    def keep(self, feedback: Feedback, key: str | None) -> None:
        """Called once the record is in the journal."""
        self._repeats.put(feedback, key)


def _timeless(feedback: Feedback) -> Feedback:
    return msgspec.structs.replace(feedback, at=0)
