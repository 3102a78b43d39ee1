"""A grader script at work: one process, asked one line at a time.

Enter: rows, each a trace with its answer and problem. Leave: an outcome for each key of each row.
Invariants: every wait is bounded; what the script answers to one row is never taken for another's;
a script that hangs, dies or answers nonsense is begun anew, and after three times no more.
"""

import contextlib
import json
import os
import resource
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from environments import sweeping
from environments.board import Outcome
from environments.graders.script import Script
from environments.isolated import GIVE_UP
from environments.isolation import MEMORY
from environments.marks import Ungraded
from environments.offered import KEPT, number_of
from environments.wrong_keys import nearest
from flywheel.records import Problem, Trace, last_answer

LINE = 1 << 20
"""Bytes of an answer."""
Row = tuple[Trace, Problem | None]


class _Broken(Exception):
    """The process cannot be asked again."""


def run_script(
    script: Script, python: Path, rows: Sequence[Row], limit_s: float
) -> list[dict[str, Outcome]]:
    """The outcomes of each row, by the script's keys."""
    found: list[dict[str, Outcome]] = []
    lost = 0
    while len(found) < len(rows):
        if lost >= GIVE_UP:
            why = f"not tried: {script.path.name} hung or died {GIVE_UP} times before"
            found += [_all(script, why)] * (len(rows) - len(found))
            break
        with _Session(script, python) as session:
            try:
                for number in range(len(found), len(rows)):
                    said = session.ask(number, rows[number], limit_s)
                    found.append(_outcomes(script, said))
            except _Broken as error:
                lost += 1
                found.append(_all(script, str(error)[:KEPT]))
    return found


def _all(script: Script, why: str) -> dict[str, Outcome]:
    return dict.fromkeys(script.keys, Outcome(None, why))


def _outcomes(script: Script, said: dict[str, Any]) -> dict[str, Outcome]:
    if "error" in said:
        return _all(script, str(said["error"])[:KEPT] or "not given")
    extra = [name for name in said if name not in script.keys]
    if extra:
        hint = nearest(extra[0], script.keys)
        return _all(
            script, f"{script.path.name} gave {extra[0]!r}, which it does not declare; {hint}"
        )
    return {name: _outcome(script, name, said) for name in script.keys}


def _outcome(script: Script, name: str, said: dict[str, Any]) -> Outcome:
    if said.get(name) is None:
        return Outcome(None, f"{script.path.name} gave no {name!r}")
    try:
        return Outcome(number_of(said[name]))
    except (Ungraded, OverflowError) as error:
        return Outcome(None, f"{script.path.name}: {name}: {error}")


class _Session:
    """The process, its three pipes, and what it wrote last to stderr."""

    def __init__(self, script: Script, python: Path) -> None:
        forker = os.getpid()

        def below() -> None:
            sweeping.go_below(forker)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))

        self.name = script.path.name
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [str(python), "-I", "-u", str(script.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=below,  # it, and all that it starts, ends with whoever grades
        )
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)
        self.errors = b""

    def __enter__(self) -> "_Session":
        return self

    def __exit__(self, *_: object) -> None:
        sweeping.end(self.process.pid)
        self.process.returncode = 0  # it is waited for
        for pipe in self._pipes():
            with contextlib.suppress(OSError):
                pipe.close()

    def _pipes(self) -> Iterator[IO[bytes]]:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                yield pipe

    def ask(self, number: int, row: Row, limit_s: float) -> dict[str, Any]:
        """What the script says of one row, without the id.

        Raises:
            _Broken: it did not answer in time, ended, or what it wrote is no answer to this row.
        """
        trace, problem = row
        choice = last_answer(trace)
        answer = choice.message.text if choice else ""
        asked = {"id": number, "answer": answer, "problem": problem, "trace": trace}
        line = self._exchange(msgspec.json.encode(asked) + b"\n", time.monotonic() + limit_s)
        if line is None:
            raise self._broken(f"took longer than {limit_s:g} s")
        try:
            said = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._broken(f"wrote no JSON: {line[:200]!r} ({error})") from error
        if not isinstance(said, dict) or said.pop("id", None) != number:
            raise self._broken(f'wrote {line[:200]!r}, which is no object with "id": {number}')
        return said

    def _exchange(self, data: bytes, until: float) -> bytes | None:
        """Writes `data` while it reads one line; None = there was none in time."""
        stdin, stdout, stderr = self._pipes()
        poll, got = select.poll(), b""
        for pipe, event in (
            (stdin, select.POLLOUT),
            (stdout, select.POLLIN),
            (stderr, select.POLLIN),
        ):
            poll.register(pipe, event)
        while (left := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000 + 1):
                if fd == stdin.fileno():
                    data = self._written(fd, data)
                    if not data:
                        poll.unregister(fd)
                    continue
                new = os.read(fd, 65536)
                if fd == stderr.fileno():
                    self.errors = (self.errors + new)[-KEPT:]
                    if not new:
                        poll.unregister(fd)
                    continue
                got += new
                head, ended, rest = got.partition(b"\n")
                if rest or len(head) > LINE:
                    raise self._broken(f"wrote more than one line, or over 1 MiB: {got[:200]!r}")
                if ended:
                    return head
                if not new:
                    raise self._broken("ended before it answered")
        return None

    def _written(self, fd: int, data: bytes) -> bytes:
        try:
            return data[os.write(fd, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:
            return b""  # its stdout tells how it ended

    def _broken(self, why: str) -> _Broken:
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stderr is not None
            self.errors = (self.errors + (self.process.stderr.read() or b""))[-KEPT:]
        said = self.errors.decode(errors="replace").strip()
        return _Broken(f"{self.name} {why}" + (f"\n{said}" if said else ""))
