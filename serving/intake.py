"""What other systems send, on its way into the inbox: read and written together, in one thread.

Enter whole requests; each leaves with what was taken of it once that is durable. Requests that come
while others are written share the next segment and its fsync. Invariant: no more than `_WAITING`
bytes wait (one more request is told to come again), and what was said to be taken is on the disk.
"""

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from flywheel.errors import BadRecord, FlywheelError
from flywheel.home import Home
from flywheel.ids import digest, digest_bytes
from serving.refusal import ApiError
from storage.belonging import NOBODY, Belonging
from storage.chunk import ChunkRead
from storage.rows_in import Row
from storage.taking import Taking

_log = logging.getLogger("flywheel.gateway")
_WAITING = 64 << 20
"""Bytes of requests that wait, as they came."""
_TOGETHER = 8 << 20
"""Bytes of rows that are held as objects at once; one request may have more."""
_REMEMBERED = 10_000
"""Requests whose repetition is known without reading it."""


class Held(NamedTuple):
    """What a request holds."""

    rows: list[bytes]
    """Of the format."""
    left_out: int = 0
    """Parts that are none of ours; `why` says so."""
    why: str | None = None


class Sent(NamedTuple):
    project: str
    format: str
    key: str
    """Of the request's content: the same again is a repetition."""
    size: int
    read: Callable[[], Held]
    """Called in the thread. Raises ApiError or BadRecord: the request holds nothing readable."""
    told: Belonging = NOBODY
    """Whose it is, where the spans do not say it."""


class Accepted(NamedTuple):
    rejected: int
    """Parts that were left out, or could not be understood and are in the quarantine."""
    why: str | None = None
    """Of the first of these."""


class Intake:
    def __init__(self, home: Home, counts: Counter[str]) -> None:
        self._home, self._counts = home, counts
        self._waiting: deque[tuple[Sent, asyncio.Future[Accepted]]] = deque()
        self._bytes = 0
        self._done: OrderedDict[str, Accepted] = OrderedDict()
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")

    async def take(self, sent: Sent) -> Accepted:
        """
        Raises:
            ApiError: 400, 413: it cannot be read; 429: too much waits; 503: it cannot be written.
        """
        known = self._done.get(sent.key)
        if known is not None:
            self._counts["otlp_repeated"] += 1
            return known
        if self._bytes and self._bytes + sent.size > _WAITING:
            raise ApiError(
                429, "more comes than can be written: come again", code="busy", retry_after=2
            )
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((sent, future))
        self._bytes += sent.size
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        accepted: Accepted = await future
        return accepted

    async def close(self) -> None:
        """Writes what waits."""
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            asked = list(self._waiting)
            sent = [one for one, _ in asked]
            try:
                outcomes, spans = await loop.run_in_executor(self._thread, self._together, sent)
            except Exception:
                _log.exception("what was sent could not be taken in")
                outcomes, spans = [ApiError(500, "a fault in the gateway; its log says more")], 0
            self._counts["otlp_spans"] += spans
            for (one, future), outcome in zip(asked, outcomes, strict=False):
                self._waiting.popleft()
                self._bytes -= one.size
                self._settle(one, future, outcome)

    def _settle(
        self, sent: Sent, future: asyncio.Future[Accepted], outcome: Accepted | ApiError
    ) -> None:
        if isinstance(outcome, Accepted):
            self._counts["otlp_rejected"] += outcome.rejected
            self._done[sent.key] = outcome
            if len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
        if future.done():  # its client left
            return
        if isinstance(outcome, Accepted):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    def _together(self, waiting: Sequence[Sent]) -> tuple[list[Accepted | ApiError], int]:
        """Takes in the first of `waiting`, as many as are held at once; runs in the thread.

        Returns: what became of each of them, and the spans that all had.
        """
        outcomes: list[Accepted | ApiError] = []
        groups: dict[tuple[str, str, Belonging], list[tuple[int, Row]]] = {}
        size = spans = 0
        for at, sent in enumerate(waiting):
            try:
                held = sent.read()
                for data in held.rows:
                    group = groups.setdefault((sent.project, sent.format, sent.told), [])
                    group.append((at, Row(len(group) + 1, data)))
                    size += len(data)
                outcomes.append(Accepted(held.left_out, held.why))
            except ApiError as error:
                outcomes.append(error)
            except BadRecord as error:
                outcomes.append(ApiError(400, f"the body {error.reason}"))
            if size >= _TOGETHER:
                break
        for of, rows in groups.items():
            try:
                read: ChunkRead | ApiError = self._group(*of, [row for _, row in rows])
            except (OSError, FlywheelError) as error:
                read = ApiError(
                    503, f"it cannot be written: {error}", code="not_recorded", retry_after=5
                )
            for at in {place for place, _ in rows}:
                before = outcomes[at]
                if isinstance(read, ChunkRead) and isinstance(before, Accepted):
                    outcomes[at] = _accepted(read, rows, at, before)
                elif isinstance(read, ApiError):
                    outcomes[at] = read
            spans += read.spans if isinstance(read, ChunkRead) else 0
        return outcomes, spans

    def _group(self, project: str, format: str, told: Belonging, chunk: list[Row]) -> ChunkRead:
        data = b"\n".join([row.data for row in chunk])
        key = digest_bytes(data)
        said = () if told == NOBODY else (told,)
        lengths = [len(row.data) for row in chunk]
        segment = f"{format}-" + digest(project, format, key, lengths, *said)
        return Taking(self._home, project, format, told).take(segment, chunk, data, key).read


def _accepted(
    read: ChunkRead, rows: list[tuple[int, Row]], place: int, before: Accepted
) -> Accepted | ApiError:
    """What a chunk gave of the request at `place`."""
    own = {number for number, (at, _) in enumerate(rows) if at == place}
    bad = [(error, held) for line, error, held in read.rejects if line in own]
    if not bad:
        return before
    if len(own) == 1 and isinstance(bad[0][1], bytes):
        return ApiError(400, f"the body {bad[0][0].reason}")
    error = bad[0][0]
    why = f"{error.field}: {error.reason}" if error.field else error.reason
    return Accepted(before.rejected + len(bad), before.why or why)
