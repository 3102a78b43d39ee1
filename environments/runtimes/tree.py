"""The tree of processes that bubblewrap makes: found, watched, ended whole.

Enter: bubblewrap's options. Leave: what it says of the program, and the certainty that nothing of
it is left. Invariant: the tree's root is held by a descriptor, so that no signal goes to a process
that took its id later.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from environments.runtimes.cgroup import Group
from environments.runtimes.child import kill_group, settle
from environments.runtimes.clock import clock_of
from environments.runtimes.contract import Reason, RuntimeFailure
from environments.runtimes.seccomp import denials
from environments.runtimes.watchdog import Watchdog

_GONE_S = 10.0
"""How long the kernel may take to end a tree that was killed."""
_SPENT = re.compile(rb"(\d+)m([\d.]+)s")


class Told(NamedTuple):
    code: int | None
    """As bubblewrap says; None = the program did not run, or bubblewrap was ended too."""
    cpu_s: float | None


class Pipes:
    """What bubblewrap is given beside the program's own input, and what it and the last shell
    before the program say."""

    def __init__(self, options: Sequence[str]) -> None:
        self._ours: list[int] = []
        self._status = b""
        self._words = b"".join(word.encode() + b"\0" for word in options)

    def __enter__(self) -> "Pipes":
        try:
            self.status, status = self._pipe()
            self._spent, self.times = self._pipe()
            held, self._gate = self._pipe()
            os.set_blocking(held, True)
            words, filters = self._filled(self._words), self._filled(denials())
        except BaseException:
            self.__exit__()
            raise
        self.given = (status, self.times, held, words, filters)
        self.options = ["--args", str(words), "--json-status-fd", str(status)]
        self.options += ["--block-fd", str(held)]
        if denials():
            self.options += ["--seccomp", str(filters)]
        return self

    def __exit__(self, *_: object) -> None:
        while self._ours:
            os.close(self._ours.pop())

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._ours += ends
        os.set_blocking(ends[0], False)
        return ends

    def _filled(self, data: bytes) -> int:
        """An open file with `data` in it; a pipe would not hold all that may be readable."""
        file = os.memfd_create("words", os.MFD_CLOEXEC)
        self._ours.append(file)
        os.write(file, data)
        os.lseek(file, 0, os.SEEK_SET)
        return file

    def let_go(self) -> None:
        """The program may start: until then bubblewrap waits, once all is laid out."""
        os.write(self._gate, b".")

    def said(self) -> dict[str, Any]:
        """What bubblewrap has said up to now."""
        self._status += _drained(self.status)
        found: dict[str, Any] = {}
        for line in self._status.splitlines():
            with contextlib.suppress(ValueError):  # not whole yet
                found |= json.loads(line)
        return found

    def told(self) -> Told:
        lines = _drained(self._spent).splitlines()
        spent = _SPENT.findall(lines[-1]) if len(lines) == 2 else []
        cpu_s = sum(60 * int(minutes) + float(seconds) for minutes, seconds in spent)
        return Told(self.said().get("exit-code"), cpu_s if spent else None)


class Tree:
    """Known as soon as bubblewrap says its root, and put into `group` before its program runs."""

    def __init__(self, pipes: Pipes, watchdog: Watchdog, group: Group | None) -> None:
        self._pipes, self._watchdog, self._group = pipes, watchdog, group
        self._root: int | None = None
        """A descriptor of the root."""
        self._known: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> "Tree":
        asyncio.get_running_loop().add_reader(self._pipes.status, self._found)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._pipes.status)
        if self._root is not None:
            self._signal()
            os.close(self._root)
        if self._watchdog.clock is not None:
            self._watchdog.used()
            self._watchdog.clock.close()
            self._watchdog.clock = None

    async def watch(self, bubblewrap: int) -> Reason | None:
        root = await self._known
        if self._group is not None:
            await asyncio.to_thread(self._group.enter, root)
        self._watchdog.clock = clock_of(root)
        self._pipes.let_go()
        return await self._watchdog.watch(root)

    def kill(self, bubblewrap: int) -> None:
        self._found()
        kill_group(bubblewrap)
        self._signal()

    async def gone(self) -> None:
        """Waits until the kernel has ended all of it.

        Raises:
            RuntimeFailure: it does not.
        """
        if self._root is None:
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._root, settle, ended)
        try:
            await asyncio.wait_for(ended, _GONE_S)
        except TimeoutError as error:
            raise RuntimeFailure(f"a program was not ended within {_GONE_S:g} s") from error
        finally:
            loop.remove_reader(self._root)

    def _found(self) -> None:
        pid = self._pipes.said().get("child-pid")
        if pid is None or self._known.done():
            return
        asyncio.get_running_loop().remove_reader(self._pipes.status)
        self._known.set_result(pid)
        with contextlib.suppress(ProcessLookupError):
            self._root = os.pidfd_open(pid)

    def _signal(self) -> None:
        if self._root is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._root, signal.SIGKILL)


def _drained(fd: int) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(fd, 65_536):
            data += chunk
    return data
