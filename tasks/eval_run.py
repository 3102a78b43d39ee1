"""One process's work on an evaluation: episodes played, written down, graded and sent to the store.

Enter a plan's environment and problems, its log, and whose answers are wanted. Leave rows. The
order for each episode: it ends, its line is on the disk, it is graded, its grades are on the disk,
and in batches both go to the store's inbox. Invariant: a kill between any two of these loses
nothing that was acknowledged, and does nothing twice that counts.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.progress import report
from flywheel.records import Grade, Problem
from tasks.eval_log import EvalLog, Graded, Played, Sent, entries
from tasks.eval_progress import Pace
from tasks.eval_rows import Key, Rows
from tasks.eval_summary import Price

if TYPE_CHECKING:
    from environments.attempt import Finished
    from storage.envelope import AnyRecord

AT_ONCE = 256
"""Episodes that are written, or graded, together at most."""
BATCH = 500
"""Episodes that go to the store as one segment."""

Episodes = Callable[[Iterable[tuple[Problem, int]]], "AsyncGenerator[Finished, None]"]
"""Plays attempts, and gives each as it ends."""
Grading = Callable[[list[list[Played]]], list[list[list[Grade]]]]
"""All grades of each episode of each group."""
Sending = Callable[[list[tuple[Played, Graded]], str], None]
"""Puts episodes and their grades into the store's inbox under a name."""


class Work:
    def __init__(self, log: EvalLog, rows: Rows, run_id: str, price: Price) -> None:
        self.log, self.rows, self.run_id = log, rows, run_id
        self.pace = Pace(rows, price)
        self._ended: asyncio.Queue[Finished | None] = asyncio.Queue(AT_ONCE)
        self._to_grade: asyncio.Queue[list[Key] | None] = asyncio.Queue()
        self._writing = asyncio.Lock()

    async def run(self, play: Episodes, grade: Grading, send: Sending) -> None:
        """All that is left, to the end.

        Raises:
            EngineError: nothing could be had of the model, or of the machine.
        """
        tasks = [
            asyncio.create_task(one) for one in (self._write(), self._grade(grade), self._tell())
        ]
        writing, grading, telling = tasks
        try:
            for group in self.rows.ready(list(self.rows.problems)):
                self._to_grade.put_nowait(group)
            async with contextlib.aclosing(play(self._attempts())) as playing:
                async for finished in playing:
                    await self._while(tasks, self._ended.put(finished))
        finally:
            # What has ended is written down, whatever ended the rest.
            if not writing.done():
                await self._ended.put(None)
            await asyncio.shield(asyncio.wait([writing]))
            telling.cancel()
            if not grading.done():
                self._to_grade.put_nowait(None)
            await asyncio.wait([grading])
            for task in (writing, grading):
                task.exception()  # seen: one of them is raised, and asyncio prints no other
        for task in (writing, grading):
            task.result()
        await self._rest(grade)
        report("evaluating", self.rows.done, self.rows.planned, self.pace.note(fresh=True))
        await asyncio.to_thread(self.send, send)

    def send(self, send: Sending) -> None:
        """What the store has not got yet goes to its inbox."""
        while pairs := self.rows.unsent(BATCH):
            records = []
            for pair in pairs:
                played, graded = self.log.read(pair.played), self.log.read(pair.graded)
                assert isinstance(played, Played) and isinstance(graded, Graded)
                records.append((played, graded))
            upto = self.rows.sent + len(pairs)
            send(records, f"eval-{self.run_id}-{self.rows.sent}-{upto}")
            failpoint("eval.sent")
            entry = Sent(graded=upto)
            (place,) = self.log.append([entry])
            self.rows.take(entry, place)

    def _attempts(self) -> Iterable[tuple[Problem, int]]:
        for attempt in list(self.rows.left()):
            self.pace.begun += 1
            yield attempt

    async def _while(self, tasks: list[asyncio.Task[None]], doing: Awaitable[None]) -> None:
        """Waits for room in a queue, unless who empties it has failed."""
        waiting = asyncio.ensure_future(doing)
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                waiting.cancel()
                task.result()
        await waiting

    async def _write(self) -> None:
        """Episodes onto the disk, as many at once as have ended meanwhile."""
        while True:
            batch = [await self._ended.get()]
            while batch[-1] is not None and len(batch) < AT_ONCE and not self._ended.empty():
                batch.append(self._ended.get_nowait())
            played = [_played(one) for one in batch if one is not None]
            await self._append(played)
            self.pace.ended += len(played)
            for group in self.rows.ready(one.problem for one in played if one.failed is None):
                self._to_grade.put_nowait(group)
            if batch[-1] is None:
                return

    async def _grade(self, grade: Grading) -> None:
        while True:
            groups = [await self._to_grade.get()]
            while groups[-1] is not None and len(groups) < AT_ONCE and not self._to_grade.empty():
                groups.append(self._to_grade.get_nowait())
            await self._graded(grade, [one for one in groups if one is not None])
            if groups[-1] is None:
                return

    async def _rest(self, grade: Grading) -> None:
        """Groups of which an attempt failed are graded without it."""
        groups = self.rows.incomplete()
        for start in range(0, len(groups), AT_ONCE):
            await self._graded(grade, groups[start : start + AT_ONCE])

    async def _graded(self, grade: Grading, groups: list[list[Key]]) -> None:
        episodes = [[self._read(key) for key in group] for group in groups]
        given = await asyncio.to_thread(grade, episodes)
        lines = [
            Graded(problem=one.problem, attempt=one.attempt, grades=tuple(grades))
            for group, values in zip(episodes, given, strict=True)
            for one, grades in zip(group, values, strict=True)
            if self.rows.rows[one.problem, one.attempt].graded_at is None
        ]
        await self._append(lines)

    def _read(self, key: Key) -> Played:
        entry = self.log.read(self.rows.rows[key].place)
        assert isinstance(entry, Played)
        return entry

    async def _append(self, lines: Sequence[Played | Graded]) -> None:
        if not lines:
            return
        async with self._writing:
            places = await asyncio.to_thread(self.log.append, lines)
            for line, place in zip(lines, places, strict=True):
                self.rows.take(line, place)
        failpoint("eval.written")

    async def _tell(self) -> None:
        while True:
            report("evaluating", self.rows.done, self.rows.planned, self.pace.note())
            await asyncio.sleep(1.0)


def _played(finished: "Finished") -> Played:
    trace = finished.trace
    failed = trace.attributes.get("failed") if finished.infrastructure else None
    return Played(
        problem=str(trace.problem_id),
        attempt=trace.attempt or 0,
        trace=trace,
        grades=tuple(finished.grades),
        failed=None if failed is None else str(failed),
    )


def resumed(log: EvalLog, rows: Rows) -> None:
    """What earlier processes did."""
    for entry, place in entries(log.path):
        rows.take(entry, place)


def sender(home: Home) -> Sending:
    """Traces and grades into the home's inbox."""
    from storage.inbox import Inbox

    inbox = Inbox(home)

    def send(episodes: list[tuple[Played, Graded]], name: str) -> None:
        records: list[AnyRecord] = []
        for played, graded in episodes:
            records += [played.trace, *graded.grades]
        inbox.append(records, name=name)

    return send
