"""Where the gateway's records go: the journal, and the raw store for what is too large for it.

A record is in the operating system's hands before `keep` returns, so it survives this process. When
it cannot be written, `NotRecorded` is raised; from then on requests are refused before anything is
spent on them (or served and counted, where the project says so) until writing works again.
"""

import asyncio
import logging
import time
from collections import Counter

from flywheel import durable
from flywheel.errors import BadRecord, FlywheelError
from flywheel.home import Home
from flywheel.ids import digest_bytes
from flywheel.records import Feedback, Trace
from serving.conversation import Offload
from serving.limits import Limits
from serving.refusal import ApiError
from storage.envelope import encode
from storage.journal import Journal
from storage.raw import RawStore

_log = logging.getLogger("flywheel.gateway")
_PROBE = b"\0" * 2**20
_PROBE_EVERY_S = 1.0
_BEHIND_S = 5.0
"""How long a record may wait for the disk before it counts as one that cannot be written to: in
its own memory the system takes on much more, all of which a power cut would cost."""


class NotRecorded(FlywheelError):
    pass


class Recording:
    def __init__(self, home: Home, limits: Limits) -> None:
        self._home, self.limits = home, limits
        self._journal = Journal(home)
        self._raw = RawStore(home)
        self.offload = Offload(self._put, text=limits.text, inline_image=limits.inline_image)
        self.counts: Counter[str] = Counter()
        self._problem: str | None = None
        self._probed = 0.0

    @property
    def problem(self) -> str | None:
        """Why nothing can be recorded as it should; None = it can."""
        behind = self.behind_s
        slow = f"the disk is {behind:.0f} s behind" if behind > _BEHIND_S else None
        return self._problem or slow

    @property
    def behind_s(self) -> float:
        """How long the oldest record waits for the disk."""
        return self._journal.behind_s

    async def ready(self) -> None:
        """Called before anything is spent on a request.

        Raises:
            ApiError: 503: it could not be recorded, and the project wants it refused then.
        """
        if self.problem is None:
            return
        if self.limits.unrecorded == "serve":
            self.counts["recorded_late"] += self._problem is None
            return
        if self._problem and time.monotonic() - self._probed >= _PROBE_EVERY_S:
            self._probed = time.monotonic()
            await asyncio.to_thread(self._probe)
        if self.problem is not None:
            self.counts["refused_unrecordable"] += 1
            raise self.refusal()

    def keep(self, record: Trace | Feedback) -> None:
        """
        Raises:
            NotRecorded: it could not be written; the caller must not let it pass as answered.
        """
        try:
            line = encode(record)
        except BadRecord as error:
            # This one record's fault: others can be written.
            self.counts["unrecorded"] += 1
            raise NotRecorded(str(error)) from error
        try:
            self._journal.append(line)
            self._problem = None
        except (OSError, FlywheelError) as error:
            self._failed(error)
            raise NotRecorded(str(error)) from error

    def keep_or_count(self, trace: Trace) -> None:
        """As `keep`, for a project that would rather serve unrecorded."""
        try:
            self.keep(trace)
        except NotRecorded:
            if self.limits.unrecorded == "refuse":
                raise
            self.counts["dropped"] += 1

    async def synced(self) -> None:
        """Returns once all that was kept is on the disk.

        Raises:
            ApiError: 503: it is not, and the project wants it refused then.
        """
        try:
            await asyncio.wrap_future(self._journal.synced())
        except OSError as error:
            self._failed(error)
            if self.limits.unrecorded == "refuse":
                raise self.refusal(NotRecorded(str(error))) from error

    def refusal(self, why: NotRecorded | None = None) -> ApiError:
        """`why`: of this one record; None = no record can be written."""
        return ApiError(
            503,
            f"it cannot be recorded: {why or self.problem}",
            code="not_recorded",
            retry_after=5,
        )

    def close(self) -> None:
        self._journal.close()

    def _put(self, data: bytes) -> str:
        try:
            return self._raw.put(data)
        except (OSError, FlywheelError) as error:
            self._failed(error)
            if self.limits.unrecorded == "serve":
                return digest_bytes(data)
            raise NotRecorded(str(error)) from error

    def _failed(self, error: Exception) -> None:
        if self._problem is None:
            _log.error("the gateway cannot record: %s", error)
        self._problem = str(error)
        self.counts["unrecorded"] += 1

    def _probe(self) -> None:
        path = self._home.journal / ".probe"
        try:
            durable.write(path, _PROBE)
            path.unlink(missing_ok=True)
            self._problem = None
        except (OSError, FlywheelError) as error:
            self._problem = str(error)
