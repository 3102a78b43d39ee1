"""Ours, as benchmarks/gateway.py measures it: the server's own gateway process and what keeps it,
in front of the scripted engine. What only a real engine needs (its supervision) is left out.

    python benchmarks/gateway_ours.py HOME ENGINE_URL PORT [--strict]

Says `ready` once it takes requests; ends with its standard input.
"""

import asyncio
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
TOML = """
name = "bench"
[model]
base = "none"
[environment]
path = "environment.py:None"
[serving]
max_concurrent = 1024
[limits]
queue = 1024
[capture]
sync = "{sync}"
"""


def main() -> None:
    import uvloop

    home, engine, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    home.mkdir(parents=True, exist_ok=True)
    project = home / "project"
    project.mkdir(exist_ok=True)
    sync = "strict" if "--strict" in sys.argv else "grouped"
    (project / "flywheel.toml").write_text(TOML.format(sync=sync))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(home, project, engine, port))


async def serve(folder: Path, project: Path, engine: str, port: int) -> None:
    from flywheel.home import Home
    from serving import routing
    from serving.board import Board
    from serving.control import Engine
    from serving.listening import listen
    from serving.logs import RequestLog, log_to
    from serving.metrics import Metrics
    from serving.observing import Observers
    from serving.state import EngineState
    from serving.workers import Workers

    home = Home(folder)
    deployment = routing.base_deployment("bench", "none")
    route = routing.ProjectRoute(project="bench", base_model="none", champion=deployment)
    now = routing.read(home)
    routing.replace(home, routing.Routing(version=now.version, projects={"bench": route}))
    log_to("text")
    observers = Observers()
    observers.add(RequestLog("text").hear)
    environment = {"FLYWHEEL_HOME": str(folder)}
    with listen("127.0.0.1", port) as listening:
        board = Board(Metrics())
        workers = Workers(home, [project], environment, listening, board, observers.tell, count=1)
        await workers.start()
        await workers.know(Engine(state=EngineState("ready"), urls=(engine,)))
        print("ready", flush=True)
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=lambda: (sys.stdin.buffer.read(), loop.call_soon_threadsafe(end.set)),
            daemon=True,
        ).start()
        keeping = asyncio.create_task(workers.keep())
        await end.wait()
        keeping.cancel()
        await workers.stop(10)


if __name__ == "__main__":
    main()
