"""Prefect's server for the time of one command, on a port of this machine only.

Prefect's own temporary server outlives a flow that is killed, and dies before it at Ctrl-C. This
one is our child: it leaves when its parent is gone, however that went. No import of Prefect here,
so that it starts while the flows are being imported.
"""

import atexit
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from flywheel import children, durable
from flywheel.errors import FlywheelError
from flywheel.home import Home

_START_S = 180.0


def start_prefect(home: Home) -> None:
    """From now on flows are recorded by a server in `home`, unless PREFECT_API_URL names one. It
    ends with this process, after Prefect has told it its last.

    Must be called before Prefect is imported.

    Raises:
        FlywheelError: it does not start; names its log.
    """
    if "PREFECT_API_URL" in os.environ:
        return
    said, log = home.prefect / f"server-{os.getpid()}", home.logs / "prefect.log"
    child = children.start("flows.server", [str(said)], log=log)
    atexit.register(_end, child)
    os.environ["PREFECT_API_URL"] = _url(child, said, log)


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(3)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _url(child: "subprocess.Popen[bytes]", said: Path, log: Path) -> str:
    until = time.monotonic() + _START_S
    while not said.exists():
        if child.poll() is not None or time.monotonic() > until:
            raise FlywheelError(f"Prefect's server did not start; the end of {log} says why")
        time.sleep(0.02)
    url = said.read_text()
    said.unlink()
    return url


def main() -> None:
    """`python -m flows.server FILE`: writes its URL into FILE once it has its port."""
    children.follow_parent()
    os.environ["PREFECT_UI_ENABLED"] = "0"
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)  # who asks before it is ready waits
        port = listening.getsockname()[1]
        durable.write(Path(sys.argv[1]), f"http://127.0.0.1:{port}/api".encode())
        import uvicorn
        from prefect.server.api.server import create_app

        application = create_app(ephemeral=True, final=True)
        uvicorn.Server(uvicorn.Config(application, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main()
