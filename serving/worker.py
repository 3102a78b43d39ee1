"""One gateway process: answers requests on the server's socket, and tells the server what ended.

`python -m serving.worker`: its standard input is the control channel, the listening socket and the
projects' folders are named by its arguments. Invariant: it leaves when the server is gone; told to
stop, it finishes its streams first.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn
import uvloop

from flywheel.errors import EngineError, FlywheelError
from flywheel.home import Home
from flywheel.project import Project, load_project
from flywheel.settings import Settings, load, quiet_dependencies
from serving.board import AskedBoard
from serving.control import Channel, Engine, Heard, Message, Ping, Ready, Reload, Said
from serving.gateway import Gateway
from serving.guarded import guarded
from serving.keys import keys_of
from serving.limits import limits_of
from serving.listening import Web
from serving.logs import log_to
from serving.observing import Seen
from serving.state import EngineState
from serving.terms import Terms

DRAIN_S = 30
"""How long streams may go on after it was told to stop."""
_TELL_S = 0.25
"""After which a request that ended is told of, with those that ended meanwhile."""
_STILL_S = 1.0
"""How often it says how it stands while nothing ends."""
_log = logging.getLogger("flywheel.gateway")


class Worker:
    def __init__(self, home: Home, projects: list[Project], settings: Settings) -> None:
        self._folders = [project.folder for project in projects]
        self.gateway = Gateway(
            home,
            frozenset(project.name for project in projects),
            limits=limits_of(projects[0].serving, projects[0].serving.workers),
            keys=keys_of(settings),
            engine=EngineState(),
            terms=Terms(projects),
        )
        self._begun_with = projects[0].serving
        self._seen: list[Seen] = []
        self._ended = asyncio.Event()
        self.gateway.observers.add(self._hear)

    async def run(self, listening: socket.socket, control: socket.socket) -> None:
        channel = await Channel.over(control)
        self._board = AskedBoard(channel, self._heard)
        self.gateway.report_to(self._board)
        web = Web(
            uvicorn.Config(
                self.gateway.application,
                http=guarded(),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=DRAIN_S,
                backlog=1024,
                ssl_certfile=self._begun_with.tls_cert,
                ssl_keyfile=self._begun_with.tls_key,
            )
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, web.stop)
        obeying = asyncio.create_task(self._obey(channel, web))
        telling = asyncio.create_task(self._tell(channel, web))
        try:
            await web.serve([listening])
        finally:
            telling.cancel()
            channel.send(self._heard())
            obeying.cancel()
            channel.close()

    async def _obey(self, channel: Channel, web: Web) -> None:
        """Leaves when the server is gone, and the engine with it, however that shows: one that was
        killed with words of ours unread is an error, not an end."""
        try:
            async for message in channel:
                self._follow(message, channel, web)
        except asyncio.CancelledError:
            raise
        except (OSError, EngineError) as error:
            _log.error("the server is gone: %s", error)
        except Exception:
            _log.exception("what the server said could not be followed")
        os._exit(1)

    def _follow(self, message: Message, channel: Channel, web: Web) -> None:
        if isinstance(message, Engine):
            self.gateway.engine.become(message.state)
            self.gateway.upstream.point_to(message.urls, message.key)
        elif isinstance(message, Ping):
            channel.send(message)
        elif isinstance(message, Said):
            self._board.settle(message)
        elif isinstance(message, Reload):
            self._reload(web)

    def _reload(self, web: Web) -> None:
        """The server found the files sound; one that changed since leaves all as it was."""
        try:
            projects = [load_project(folder) for folder in self._folders]
        except FlywheelError as error:
            _log.error("not reloaded: %s", error)
            return
        self.gateway.adopt(projects, self._begun_with.workers)
        if self._begun_with.tls_cert is not None and web.config.ssl is not None:
            web.config.ssl.load_cert_chain(self._begun_with.tls_cert, self._begun_with.tls_key)

    async def _tell(self, channel: Channel, web: Web) -> None:
        while not web.started:
            await asyncio.sleep(0.01)
        channel.send(Ready())
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STILL_S):
                    await self._ended.wait()
                    await asyncio.sleep(_TELL_S)
            self._ended.clear()
            channel.send(self._heard())

    def _hear(self, seen: Seen) -> None:
        self._seen.append(seen)
        self._ended.set()

    def _heard(self) -> Heard:
        seen = tuple(self._seen)
        self._seen.clear()
        return self.gateway.stands(seen)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="serving.worker", description=__doc__)
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--project", type=Path, action="append", required=True)
    given = parser.parse_args(arguments)
    settings = load()
    quiet_dependencies(settings.at())
    projects = [load_project(folder) for folder in given.project]
    log_to(projects[0].serving.log)
    worker = Worker(settings.at(), projects, settings)
    listening, control = socket.socket(fileno=given.listen), socket.socket(fileno=os.dup(0))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(worker.run(listening, control))
    return 0


if __name__ == "__main__":
    sys.exit(main())
