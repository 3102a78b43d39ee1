"""Reconciling at the server's start, in a process of its own: MLflow stays out of the gateway's.

`python -m serving.realign HOME ENGINE_URL`. Whatever goes wrong in it is written to its log and
stops nobody: the routing file alone says what serves.
"""

import logging
import subprocess
import sys
from pathlib import Path

from flywheel import children
from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.settings import quiet_dependencies
from serving.routing import read

_WAIT_S = 180
_log = logging.getLogger("flywheel.server")


def realign(home: Home, engine_url: str) -> None:
    """Runs it, where there is anything that could be out of line, and waits for it."""
    promoted = any(route.champion.version for route in read(home).projects.values())
    if not promoted and not any(home.promotions.glob("*.json")):
        return
    log = home.logs / "reconcile.log"
    child = children.start("serving.realign", [str(home.root), engine_url], log=log)
    try:
        code = child.wait(_WAIT_S)
        if code:
            _log.error("reconciling failed with code %s; %s says why", code, log)
    except subprocess.TimeoutExpired:
        _log.error("reconciling took over %s s and was ended; see %s", _WAIT_S, log)
        child.kill()
        child.wait()
    finally:
        if child.stdin is not None:
            child.stdin.close()


def main() -> int:
    children.follow_parent()
    home, engine_url = Home(Path(sys.argv[1])), sys.argv[2]
    quiet_dependencies(home)
    from serving.engines.client import EngineClient
    from serving.engines.reach import read_access
    from serving.reconcile import reconcile
    from serving.registry import Registry

    try:
        with EngineClient(engine_url, access=read_access(home)) as engine:
            for line in reconcile(home, Registry(home), engine):
                print(line, flush=True)
    except FlywheelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
