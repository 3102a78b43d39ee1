"""The gateway processes of a server: started, told, heard, started again, stopped.

All accept from one listening socket, so that one that ends takes no waiting connection with it.
Enters who listens and how many; leaves what they hear. Invariant: a process that dies is replaced;
what it had counted is kept.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flywheel.children import Kept
from flywheel.errors import EngineError
from flywheel.home import Home
from serving.board import Board
from serving.control import Asks, Channel, Engine, Heard, Message, Ping, Ready, Reload, Said
from serving.observing import Seen

_ROOT = Path(__file__).resolve().parent.parent
_READY_S = 120.0
_LOOK_S = 1.0
_ENDED_S = 0.05
"""From the end of what one says to the end of its process."""
_BEGUN_S = 0.025
_log = logging.getLogger("flywheel.server")


class Workers:
    def __init__(
        self,
        home: Home,
        folders: Sequence[Path],
        environment: dict[str, str],
        listening: socket.socket,
        board: Board,
        hear: Callable[[Seen], None],
        *,
        count: int,
    ) -> None:
        """`hear`: is told of every request that ended, in this process."""
        self._home, self._folders, self._environment = home, folders, environment
        self._listening, self._board, self._hear, self._count = listening, board, hear, count
        self._kept: list[Kept] = []
        self._channels: dict[int, Channel] = {}
        self._ready: dict[int, asyncio.Event] = {}
        self._pings: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()
        self._engine: Engine | None = None
        self.health: Callable[[], dict[str, Any]] = dict
        """What the server adds to `/health`."""

    @property
    def restarts(self) -> int:
        return sum(kept.restarts for kept in self._kept)

    @property
    def pids(self) -> list[int]:
        return [kept.child.pid for kept in self._kept]

    async def start(self) -> None:
        """Returns when all of them take requests.

        Raises:
            EngineError: one does not start; the log says why.
        """
        self._kept = [Kept(self._begin) for _ in range(self._count)]
        try:
            async with asyncio.timeout(_READY_S):
                while not all(self._answers(kept.child.pid) for kept in self._kept):
                    if any(kept.child.poll() for kept in self._kept):
                        raise EngineError(f"a gateway process does not start: see {self._log}")
                    await asyncio.sleep(_BEGUN_S)
        except TimeoutError as error:
            raise EngineError(f"a gateway process does not start: see {self._log}") from error

    async def keep(self) -> None:
        """Until it is cancelled: starts again whoever died."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._gone.wait()
                    await asyncio.sleep(_ENDED_S)
            self._gone.clear()
            for kept in self._kept:
                if kept.tend():
                    _log.error("a gateway process died and was started again")

    def tell_engine(self, engine: Engine) -> None:
        if engine != self._engine:
            self._engine = engine
            self._tell(engine)

    async def know(self, engine: Engine) -> None:
        """Returns when each of them goes by `engine`."""
        self.tell_engine(engine)
        for pid, channel in list(self._channels.items()):
            heard = self._pings[pid] = asyncio.Event()
            channel.send(Ping())
            with contextlib.suppress(TimeoutError):  # one that died is told when it is back
                await asyncio.wait_for(heard.wait(), 5.0)

    def reload(self) -> None:
        self._tell(Reload())

    async def stop(self, wait_s: float) -> None:
        """Lets them finish what runs; returns when they are gone and heard."""
        stopping = [asyncio.to_thread(kept.stop, wait_s) for kept in self._kept]
        await asyncio.gather(*stopping)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._tasks:
            task.cancel()

    def terminate(self) -> None:
        """Once more: they shall not wait for what runs."""
        for kept in self._kept:
            if kept.child.poll() is None:
                kept.child.terminate()

    @property
    def _log(self) -> Path:
        return self._home.logs / "gateway.log"

    def _tell(self, message: Message) -> None:
        for channel in self._channels.values():
            channel.send(message)

    def _answers(self, pid: int) -> bool:
        return pid in self._ready and self._ready[pid].is_set()

    def _begin(self) -> "subprocess.Popen[bytes]":
        ours, theirs = socket.socketpair()
        listen = self._listening.fileno()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        arguments = ["--listen", str(listen)]
        for folder in self._folders:
            arguments += ["--project", str(folder)]
        with theirs, self._log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "serving.worker", *arguments],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(listen,),
                env={**os.environ, **self._environment},
                cwd=_ROOT,
                start_new_session=True,
            )
        self._ready[child.pid] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._listen(child.pid, ours))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return child

    async def _listen(self, pid: int, end: socket.socket) -> None:
        """What one of them says, until it is gone."""
        channel = self._channels[pid] = await Channel.over(end)
        if self._engine is not None:
            channel.send(self._engine)
        try:
            async for message in channel:
                if isinstance(message, Heard):
                    self._board.hear(pid, message)
                    for seen in message.seen:
                        self._hear(seen)
                elif isinstance(message, Ping):
                    self._pings[pid].set()
                elif isinstance(message, Ready):
                    self._ready[pid].set()
                elif isinstance(message, Asks):
                    channel.send(Said(number=message.number, content=await self._told(message)))
        except (EngineError, OSError) as error:
            _log.error("a gateway process is not understood: %s", error)
        finally:
            channel.close()
            self._channels.pop(pid, None)
            self._ready.pop(pid, None)
            self._pings.pop(pid, None)
            self._board.forget(pid)
            self._gone.set()

    async def _told(self, asks: Asks) -> Any:
        if asks.what == "metrics":
            return await self._board.metrics()
        return {**await self._board.health(), **self.health()}
