"""Runs rewards in a forked child, so that no reward can hurt the process that grades.

Enter: lanes of calls. Leave: an outcome for each slot. Invariant: a call that hangs, dies or takes
the whole child with it is a null with its reason, and the rest goes on in a fresh child; the child
inherits the environment, so that nothing has to be pickled.
"""

import contextlib
import gc
import io
import os
import resource
import select
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from environments import sweeping
from environments.board import LOOP, LOST, RUNNING, WAITING, Board, Outcome
from environments.isolated import GIVE_UP, Inside, Lane, after_loss, given_up, limit_of
from environments.offered import Call
from flywheel.plain import plain
from flywheel.progress import report

if TYPE_CHECKING:
    from environments.define import Environment

MEMORY = 2 << 30
"""Bytes that rewards may take beside what the grading process has."""
PRINTED = 64 << 10
"""Bytes that the rewards of one batch may print; the rest is not shown."""
_DIED = "the reward ended its process"
_TOLD_S = 1.0
"""Between two words on how far a judge has come."""


def run_isolated(environment: "Environment", lanes: Sequence[Lane], slots: int) -> list[Outcome]:
    """The outcome of each slot; the time limits are the environment's."""
    if not lanes:
        return [Outcome(None)] * slots
    with contextlib.closing(Board(slots)) as board, _folder(lanes) as folder:
        outside = _Outside(environment, board, lanes, folder)
        batches = [list(lanes)]
        while batches:
            batches.extend(outside.after(batches.pop()))
        return [board.outcome(slot) for slot in range(slots)]


@contextlib.contextmanager
def _folder(lanes: Sequence[Lane]) -> Iterator[Path]:
    """Of the sandboxes, where there are any."""
    if not any("sandbox" in call.method.arguments for lane in lanes for call in lane):
        yield Path("/nonexistent")
        return
    folder = Path(tempfile.mkdtemp(prefix="flywheel-grading-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Outside:
    """The parent: starts a child, watches it, and decides who was to blame."""

    def __init__(
        self, environment: "Environment", board: Board, lanes: Sequence[Lane], folder: Path
    ) -> None:
        self.environment, self.board, self.folder = environment, board, folder
        self.calls = {call.at: call for lane in lanes for call in lane}
        self.lost: Counter[str] = Counter()
        self.printed = 0
        self.judged = [call for call in self.calls.values() if getattr(call.judge, "spent", None)]

    def after(self, lanes: list[Lane]) -> list[list[Lane]]:
        """Runs one child on `lanes`; returns what is left to be done, the next last.

        Where several calls were under way together, each of them is to run alone, so that none is
        blamed for another.
        """
        lanes = [lane for lane in lanes if not self._settled(lane)]
        if not lanes:
            return []
        ended = self._run_child(lanes)
        left = [lane for lane in lanes if not self._done(lane)]
        under_way = [lane for lane in left if any(self._is(call, RUNNING) for call in lane)]
        if len(under_way) > 1:
            apart = {id(lane) for lane in under_way}
            return [
                [lane for lane in left if id(lane) not in apart],
                *([lane] for lane in under_way),
            ]
        if left:
            suspects = [call for lane in under_way or left[:1] for call in lane]
            running = [call for call in suspects if self._is(call, RUNNING)]
            blamed = (running or [call for call in suspects if self._open(call)])[0]
            self._put(blamed, ended, lost=True)
            self.lost[blamed.method.name] += 1
        return [left]

    def _is(self, call: Call, state: int) -> bool:
        return self.board.states[call.at] == state

    def _open(self, call: Call) -> bool:
        return self.board.states[call.at] in (WAITING, RUNNING)

    def _done(self, lane: Lane) -> bool:
        return not any(self._open(call) for call in lane)

    def _settled(self, lane: Lane) -> bool:
        """Puts what needs no trying. A lane that is begun again begins with its first call, so
        that `state` is what it was; behind a call that is lost it cannot be."""
        gone: Call | None = None
        for call in lane:
            if gone is not None and self._open(call):
                self._put(call, after_loss(gone))
            elif self._open(call) and self.lost[call.method.name] >= GIVE_UP:
                self._put(call, given_up(call.method))
                gone = call
            elif self._is(call, LOST):
                gone = call
        return self._done(lane)

    def _put(self, call: Call, reason: str, *, lost: bool = False) -> None:
        for slot in call.slots:
            self.board.put(slot, reason, lost=lost)

    # --- the child -----------------------------------------------------------------------------

    def _run_child(self, lanes: list[Lane]) -> str:
        """Returns how it ended: what is said of the call that was under way."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        inside = Inside(self.environment, self.board, self.lost, self.folder)
        prints, child_end = os.pipe()
        parent = os.getpid()
        self.board.begin()
        pid = os.fork()
        if pid == 0:
            _be_child(inside, lanes, child_end, parent)
        os.close(child_end)
        os.set_blocking(prints, False)
        try:
            return self._watched(pid, prints)
        finally:
            sweeping.end(pid)
            self._show(prints)
            os.close(prints)
            self.board.collect()
            lost = (call.method.name for call in self.calls.values() if self._is(call, LOST))
            self.lost = Counter(lost)

    def _watched(self, pid: int, prints: int) -> str:
        ended = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.register(prints, select.POLLIN)
            while True:
                self._tell()
                at, seconds = self.board.at_work()
                limit = self._limit(at)
                if seconds >= limit and self.board.at_work()[0] == at:
                    return f"took longer than {limit:g} s"
                wait_s = max(limit - seconds, 0)
                for fd, _ in poll.poll(
                    (min(wait_s, _TOLD_S) if self.judged else wait_s) * 1000 + 1
                ):
                    if fd == ended:
                        self._tell()
                        return _DIED
                    if not self._show(prints):
                        poll.unregister(prints)
        finally:
            os.close(ended)

    def _tell(self) -> None:
        """A judge takes its time: how far it has come, and what it spent."""
        if self.judged:
            done = sum(not self._open(call) for call in self.judged)
            note: str = self.judged[0].judge.spent()  # type: ignore[union-attr]
            report("judging", done, len(self.judged), note)

    def _limit(self, at: int) -> float:
        calls = self.calls.values() if at == LOOP else (self.calls[at],)
        return max(limit_of(self.environment, call) for call in calls)

    def _show(self, prints: int) -> bool:
        """Passes on what rewards printed, up to a bound; False = nothing more can come."""
        try:
            while data := os.read(prints, 65536):
                shown = data[: max(PRINTED - self.printed, 0)]
                if self.printed <= PRINTED < self.printed + len(data):
                    shown += b"\n(what rewards print after this is left out)\n"
                self.printed += len(data)
                with contextlib.suppress(OSError):
                    os.write(2, plain(shown.decode("utf-8", "replace")).encode())
            return False
        except BlockingIOError:
            return True


def _be_child(inside: Inside, lanes: list[Lane], prints: int, parent: int) -> None:
    """Never returns. Dies with its parent, so that it holds none of the parent's locks longer, and
    all that it started with it. What rewards print goes to the parent's stderr, since stdout may be
    a command's JSON."""
    try:
        sweeping.go_below(parent)
        gc.freeze()
        _own_streams(prints)
        _bound_memory()
        inside.serve(lanes)
    finally:
        os._exit(0)


def _own_streams(prints: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, new in ((nothing, 0), (prints, 1), (prints, 2)):
        os.dup2(fd, new)
    sys.stdin = os.fdopen(0, closefd=False)
    plain = os.fdopen(2, "wb", buffering=0, closefd=False)
    sys.stdout = sys.stderr = io.TextIOWrapper(plain, errors="replace", write_through=True)


def _bound_memory() -> None:
    """So that a reward gets a MemoryError before the machine runs out."""
    data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    bound = data_pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (bound, resource.getrlimit(resource.RLIMIT_DATA)[1]))
