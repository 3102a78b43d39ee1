"""One child process, from its start to its last byte: bounded in time and output, without threads.

Enter: a command line with its input. Leaves: how it ended and what it wrote. Invariant: when `run`
returns or is cancelled, the child is dead and reaped and no descriptor of it is open.
"""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from environments.runtimes.contract import Reason, RuntimeFailure

FLOOD = 10
"""A program that writes so many times what is kept is ended."""
_GRACE_S = 2.0
"""How long an end of output is waited for after the child's own end."""
_CHUNK = 65_536


class Ended(NamedTuple):
    status: int
    """Its exit code; below 0: the signal that ended it."""
    stopped: Reason | None
    """Why it was ended here; None = it ended by itself."""
    stdout: str
    stderr: str
    cut: bool
    seconds: float
    used: resource.struct_rusage
    """Of the child and of those of its own children that it waited for."""


Watch = Callable[[int], Awaitable[Reason | None]]
"""Given the child's id; returns when the child is to be ended, and why."""


class Child:
    """`kill` ends the whole of it; by default the process itself and its group."""

    def __init__(
        self,
        argv: Sequence[str],
        stdin: bytes,
        env: Mapping[str, str],
        *,
        cwd: Path | None = None,
        fds: Sequence[int] = (),
        output: int,
        kill: Callable[[int], None] | None = None,
    ) -> None:
        self.argv, self.stdin, self.env, self.cwd, self.fds = argv, stdin, env, cwd, fds
        self.output = output
        self.kill = kill or kill_group
        self.stopped: Reason | None = None
        self._pid: int | None = None
        self._kept: list[bytearray] = [bytearray(), bytearray()]
        self._open: set[int] = set()

    async def run(self, wall_s: float, watch: Watch | None = None) -> Ended:
        """
        Raises:
            RuntimeFailure: no process could be started.
        """
        loop = self._loop = asyncio.get_running_loop()
        started = time.monotonic()
        process = self._start()
        self._pid = process.pid
        pidfd = self._held(process)
        done: asyncio.Future[None] = loop.create_future()
        self._quiet: asyncio.Future[None] = loop.create_future()
        loop.add_reader(pidfd, settle, done)
        timer = loop.call_later(wall_s, self.end, "timeout")
        watching = asyncio.ensure_future(self._watch(watch, process.pid)) if watch else None
        try:
            self._connect(process)
            await done
            self.kill(process.pid)  # what it left behind may hold its output open
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet, _GRACE_S)
        finally:
            timer.cancel()
            if watching is not None:
                watching.cancel()
            loop.remove_reader(pidfd)
            os.close(pidfd)
            for fd in tuple(self._open):
                self._close(fd)
            self.kill(process.pid)
            self._pid = None
            status, used = _reap(process)
        return self._ended(status, used, time.monotonic() - started)

    def end(self, reason: Reason) -> None:
        """Ends the child, if it runs; the first reason stays."""
        if self._pid is not None:
            self.stopped = self.stopped or reason
            self.kill(self._pid)

    def _start(self) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(
                self.argv,
                stdin=pipe if self.stdin else subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env=dict(self.env),
                cwd=self.cwd,
                pass_fds=self.fds,
                start_new_session=True,
            )
        except OSError as error:
            raise RuntimeFailure(f"{self.argv[0]} could not be started: {error}") from error

    def _held(self, process: "subprocess.Popen[bytes]") -> int:
        try:
            return os.pidfd_open(process.pid)
        except OSError as error:
            self.kill(process.pid)
            _reap(process)
            raise RuntimeFailure(f"{self.argv[0]} cannot be waited for: {error}") from error

    async def _watch(self, watch: Watch, pid: int) -> None:
        try:
            reason = await watch(pid)
        except OSError:  # unwatched, nothing may run
            self.kill(pid)
            return
        if reason is not None:
            self.end(reason)

    def _connect(self, process: "subprocess.Popen[bytes]") -> None:
        for number, stream in enumerate((process.stdout, process.stderr)):
            assert stream is not None
            fd = _ours(stream.fileno())
            stream.close()
            self._open.add(fd)
            self._loop.add_reader(fd, self._read, fd, number)
        self._outputs = set(self._open)
        if process.stdin is not None:
            fd = _ours(process.stdin.fileno())
            process.stdin.close()
            self._open.add(fd)
            self._loop.add_writer(fd, self._write, fd, memoryview(self.stdin))

    def _read(self, fd: int, number: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kept = self._kept[number]
        if not data:
            self._close(fd)
            self._outputs.discard(fd)
            if not self._outputs:
                settle(self._quiet)
        elif len(kept) <= FLOOD * self.output:
            kept += data
        else:
            self.end("output")

    def _write(self, fd: int, rest: memoryview) -> None:
        try:
            rest = rest[os.write(fd, rest[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # it reads no further
            rest = rest[:0]
        self._loop.remove_writer(fd)
        if rest:
            self._loop.add_writer(fd, self._write, fd, rest)
        else:
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        self._open.discard(fd)
        os.close(fd)

    def _ended(self, status: int, used: resource.struct_rusage, seconds: float) -> Ended:
        out, err = (shorten(bytes(kept), self.output) for kept in self._kept)
        cut = any(len(kept) > self.output for kept in self._kept)
        return Ended(status, self.stopped, out, err, cut, seconds, used)


def shorten(data: bytes, most: int) -> str:
    """The beginning and the end, where it is longer: an error's last lines say most."""
    left = len(data) - most
    if left <= 0:
        return data.decode("utf-8", "replace")
    head, tail = most // 2, most - most // 2
    said = (data[:head], f"\n[{left} bytes left out]\n".encode(), data[len(data) - tail :])
    return b"".join(said).decode("utf-8", "replace")


def settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _ours(fd: int) -> int:
    """A descriptor that no file object closes."""
    copy = os.dup(fd)
    os.set_blocking(copy, False)
    return copy


def _reap(process: "subprocess.Popen[bytes]") -> tuple[int, resource.struct_rusage]:
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used
