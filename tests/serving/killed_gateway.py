"""A gateway in a process of its own, there to be killed.

`python -m tests.serving.killed_gateway HOME ENGINE_URL SOCKET`: listens on the inherited socket, so
that one that takes its place is there for clients that wait.
"""

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path

import uvicorn
import uvloop

from flywheel.home import Home
from serving.gateway import Gateway
from serving.keys import Keys
from serving.limits import Limits
from serving.state import EngineState


def main(home: str, engine_url: str, number: str) -> None:
    gateway = Gateway(
        Home(Path(home)),
        frozenset({"support"}),
        limits=Limits(),
        keys=Keys(()),
        engine=EngineState("ready"),
    )
    gateway.upstream.point_to(engine_url)
    config = uvicorn.Config(
        gateway.application, http="httptools", log_level="error", access_log=False
    )
    listening = socket.socket(fileno=int(number))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve([listening]))


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    main(*sys.argv[1:])
