"""What a child's calls gave, in memory that it shares with its parent.

Enter: from the child, a number or a reason for each slot. Leave: to the parent, the same, also of a
child that hung or died meanwhile. Invariant: what was given before is never lost with the child,
and a number costs no system call.
"""

import mmap
import os
import tempfile
import time
from typing import NamedTuple

import msgspec

WAITING, RUNNING, GIVEN, NULL, LOST = range(5)
"""Of a slot. LOST = it hung, or took its process along: counted, and not tried for ever."""
LOOP = -1
"""In the place of the slot at work: an event loop that has several under way."""
_HEAD = 16
_frame = msgspec.msgpack.Decoder(tuple[int, str | None, str])


class Outcome(NamedTuple):
    value: float | None
    reason: str | None = None
    """Why there is no value, or what a judge said beside one."""
    judged: str = ""
    """Digest of the judge that had a part in it; "" = none was heard."""


class Board:
    def __init__(self, size: int) -> None:
        memory = memoryview(mmap.mmap(-1, _HEAD + 9 * max(size, 1)))
        self._head = memory[:_HEAD].cast("d")
        self.values = memory[_HEAD : _HEAD + 8 * size].cast("d")
        self.states = memory[_HEAD + 8 * size : _HEAD + 9 * size]
        self.reasons: dict[int, str] = {}
        """Of the parent: what `collect` has read so far."""
        self.judged: dict[int, str] = {}
        self._written = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the board
        self._fd = self._written.fileno()

    def close(self) -> None:
        self._written.close()

    # --- the child's side ----------------------------------------------------------------------

    def enter(self, slot: int, *, loop: bool = False) -> None:
        """Says what is under way, and since when."""
        if not loop:
            self._head[1] = time.monotonic()
            self._head[0] = slot
        self.states[slot] = RUNNING

    def beat(self) -> None:
        """Says that the event loop turns."""
        self._head[1] = time.monotonic()
        self._head[0] = LOOP

    def give(self, slot: int, outcome: Outcome) -> None:
        if outcome.reason is not None or outcome.judged:
            data = msgspec.msgpack.encode((slot, outcome.reason, outcome.judged))
            os.write(self._fd, len(data).to_bytes(4, "little") + data)
        if outcome.value is None:
            self.states[slot] = NULL
        else:
            self.values[slot] = outcome.value
            self.states[slot] = GIVEN

    def lose(self, slot: int, reason: str) -> None:
        self.give(slot, Outcome(None, reason))
        self.states[slot] = LOST

    # --- the parent's side ---------------------------------------------------------------------

    def at_work(self) -> tuple[int, float]:
        """The slot (or LOOP) and the seconds since it was entered."""
        return int(self._head[0]), time.monotonic() - self._head[1]

    def begin(self) -> None:
        """Before a child starts: the time of its first call counts from here."""
        self.beat()

    def collect(self) -> None:
        """Reads the reasons that the child wrote, after its end."""
        data, at = os.pread(self._fd, os.fstat(self._fd).st_size, 0), 0
        while len(data) >= at + 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            if end > len(data):
                break  # it died while it wrote
            slot, reason, judged = _frame.decode(data[at + 4 : end])
            if reason is not None:
                self.reasons[slot] = reason
            self.judged[slot], at = judged, end
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def put(self, slot: int, reason: str, *, lost: bool = False) -> None:
        """The parent's own word on a slot."""
        self.reasons[slot] = reason
        self.states[slot] = LOST if lost else NULL

    def outcome(self, slot: int) -> Outcome:
        value = self.values[slot] if self.states[slot] == GIVEN else None
        return Outcome(value, self.reasons.get(slot), self.judged.get(slot, ""))
