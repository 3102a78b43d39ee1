"""Programs behind bubblewrap: each sees a read-only system, its workspace and a /tmp of its own.

Enter: a configuration and a folder. Leaves: a runtime. Invariant: when `exec` returns, no process
of the program is left; as root, every runtime has a user id of its own, so that limits that bind a
user bind one runtime.
"""

import asyncio
import os
import signal
from pathlib import Path

from environments.runtimes import bwrap, cgroup, users
from environments.runtimes.child import Child, Ended
from environments.runtimes.contract import Limits, Ran, Reason, RuntimeFailure, Sandbox
from environments.runtimes.tree import Pipes, Told, Tree
from environments.runtimes.watchdog import Watchdog
from environments.runtimes.workspace import Order, Workspace

_LOOKS, _LOOK_S = 500, 0.01
"""How long programs that were ended are waited for, before their files go."""
_BARE = {"PATH": "/usr/bin:/bin"}


class SandboxRuntime(Workspace):
    """`grouped=False`: memory is watched from here even where the kernel could bound it."""

    def __init__(self, config: Sandbox, folder: Path, *, grouped: bool = True) -> None:
        super().__init__(folder, config.limits)
        self.config = config
        self.grouped = grouped
        self._program = bwrap.program()
        self._readable = bwrap.readable(config.readable)
        self._user: users.User | None = None
        self._running: set[Child] = set()

    async def start(self) -> None:
        if os.geteuid() == 0 and self._user is None:
            try:
                self._user = users.take()
            except OSError as error:
                raise RuntimeFailure(f"no user id could be taken: {error}") from error
            self.owner = self._user.uid
        self.make()
        self._describe(self.folder / "etc")

    async def run(self, order: Order) -> Ran:
        from environments.runtimes.door import opened

        limits = order.limits
        group = cgroup.make(limits.memory) if self.grouped else None
        etc = self.folder / "etc"
        try:
            async with opened(order.door, order.command) as (socket, through):
                scene = bwrap.Scene(self.work, etc, self._readable, self.owner, socket)
                words = bwrap.words(scene, limits, through, order.env, order.cwd)
                return await self._watched(words, order.stdin, limits, group)
        except OSError as error:
            raise RuntimeFailure(f"no sandbox could be made: {error}") from error
        finally:
            if group is not None:
                group.remove()

    async def stop(self) -> None:
        for child in tuple(self._running):
            child.end("killed")
        for _ in range(_LOOKS):
            if not self._running:
                break
            await asyncio.sleep(_LOOK_S)
        self.remove()
        if self._user is not None:
            users.give_back(self._user)
            self._user = None

    async def _watched(
        self, words: bwrap.Words, stdin: bytes, limits: Limits, group: cgroup.Group | None
    ) -> Ran:
        watchdog = Watchdog(limits, self.work, grouped=group is not None, own=bwrap.OWN)
        with Pipes(words.options) as pipes:
            argv = [self._program, *pipes.options, "--", *words.program(pipes.times)]
            with Tree(pipes, watchdog, group) as tree:
                child = Child(
                    *(argv, stdin, _BARE), fds=pipes.given, output=limits.output, kill=tree.kill
                )
                self._running.add(child)
                try:
                    ended = await child.run(limits.wall_s, tree.watch)
                finally:
                    try:
                        await tree.gone()  # also where whoever waits was cancelled
                    finally:
                        self._running.discard(child)
            told = pipes.told()
        return _ran(ended, told, watchdog, limits, group)

    def _describe(self, etc: Path) -> None:
        """Who the program is, as it reads it."""
        who = bwrap.ORDINARY if self.owner is None else self.owner
        files = {
            "passwd": f"sandbox:x:{who}:{who}::{bwrap.WORKSPACE}:/bin/sh\n",
            "group": f"sandbox:x:{who}:\n",
            "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        }
        try:
            etc.mkdir(exist_ok=True)
            for name, text in files.items():
                (etc / name).write_text(text)
        except OSError as error:
            raise RuntimeFailure(f"{etc} could not be written: {error}") from error


def _ran(
    ended: Ended, told: Told, watchdog: Watchdog, limits: Limits, group: cgroup.Group | None
) -> Ran:
    seen = (told.cpu_s, watchdog.cpu_s, group.cpu_s() if group else None)
    cpu_s = max((seconds for seconds in seen if seconds is not None), default=None)
    peak = group.peak() if group else watchdog.peak
    starved = group is not None and group.killed()
    if told.code is None and ended.stopped is None and not starved:
        raise RuntimeFailure(f"no sandbox could be made: {ended.stderr.strip()[-500:]}")
    reason, code = _reason(ended, told.code, cpu_s, starved, limits)
    return Ran(reason, code, ended.stdout, ended.stderr, ended.seconds, cpu_s, peak, ended.cut)


def _reason(
    ended: Ended, code: int | None, cpu_s: float | None, starved: bool, limits: Limits
) -> tuple[Reason, int | None]:
    """A shell, and bubblewrap, tell signal n as code 128 + n: above 128 it is taken for one."""
    by = code - 128 if code is not None and 128 < code <= 128 + signal.SIGRTMAX else None
    left = None if by is not None else code
    if ended.stopped is not None:
        return ended.stopped, left
    if code == 0:
        return "ok", 0
    if starved:
        return "memory", left
    if by == signal.SIGXCPU or (by == signal.SIGKILL and (cpu_s or 0.0) >= limits.cpu_s):
        return "timeout", left
    if by == signal.SIGXFSZ:
        return "output", left
    return ("killed", None) if by is not None else ("error", code)
