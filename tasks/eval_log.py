"""The durable log of one evaluation: what each episode was and how it was graded, a line each.

Enter episodes as they end and grades as they are given; leave the same, whatever was killed.
Invariants: what `append` returned from is on the disk; a torn last line was never acknowledged and
is cut off; no line changes; one process has a run at a time.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import TypeAlias

import msgspec
from filelock import FileLock, Timeout

from flywheel.durable import no_space, sync_folder
from flywheel.errors import Busy, CorruptFile
from flywheel.records import Grade, Record, Trace


class Played(Record, frozen=True, kw_only=True, tag="episode"):
    """An episode that ended."""

    problem: str
    attempt: int
    trace: Trace
    grades: tuple[Grade, ...] = ()
    """Those that needed the episode while it lived."""
    failed: str | None = None
    """Why infrastructure kept it from its end: such an attempt is made again on resume."""


class Graded(Record, frozen=True, kw_only=True, tag="grades"):
    """All grades of an episode whose line stands above."""

    problem: str
    attempt: int
    grades: tuple[Grade, ...]


class Sent(Record, frozen=True, kw_only=True, tag="sent"):
    """Traces and grades of the first so many graded episodes are in the store's inbox."""

    graded: int


Entry: TypeAlias = Played | Graded | Sent
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Entry)


def encoded(entry: Entry) -> bytes:
    return _encode(entry) + b"\n"


class EvalLog:
    """The file, held by this process from `opened` on."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path, self._file = path, file

    def append(self, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        """Writes `entries` and returns each one's place (offset, bytes) once all are on the disk.

        Raises:
            Full: no room; none of them counts as written.
        """
        at, places, lines = self._file.tell(), [], []
        for entry in entries:
            lines.append(encoded(entry))
            places.append((at, len(lines[-1])))
            at += len(lines[-1])
        start = places[0][0] if places else at
        try:
            with no_space(self.path):
                left = memoryview(b"".join(lines))
                while left:
                    left = left[os.write(self._file.fileno(), left) :]
                os.fsync(self._file.fileno())
        except BaseException:
            self._cut(start)
            raise
        return places

    def read(self, place: tuple[int, int]) -> Entry:
        return read_at(self.path, place)

    def _cut(self, size: int) -> None:
        with contextlib.suppress(OSError):
            self._file.truncate(size)
            self._file.seek(size)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[EvalLog]:
    """
    Raises:
        Busy: another process has this run.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(".lock"), blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise Busy(f"another process works on the evaluation {path.parent.name}") from error
    try:
        path.touch(mode=0o600)
        sync_folder(path.parent)
        with FileIO(path, "r+") as file:
            whole = _whole(file)
            file.truncate(whole)
            file.seek(whole)
            yield EvalLog(path, file)
    finally:
        lock.release()


def _whole(file: FileIO) -> int:
    """Bytes up to the end of the last whole line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65_536)
        newline = os.pread(file.fileno(), end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def entries(path: Path) -> Iterator[tuple[Entry, tuple[int, int]]]:
    """Every whole line with its place, also while another process appends.

    Raises:
        CorruptFile: a line that is none of ours.
    """
    at = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _decoder.decode(line), (at, len(line))
            except msgspec.DecodeError as error:
                raise CorruptFile(f"{path}:{number}: no line of an evaluation: {error}") from error
            at += len(line)


def read_at(path: Path, place: tuple[int, int]) -> Entry:
    with path.open("rb") as file:
        file.seek(place[0])
        return _decoder.decode(file.read(place[1]))
