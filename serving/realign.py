"""What the server's start brings in line, in processes of their own: MLflow and DuckDB stay out of
the gateway's.

`python -m serving.realign HOME ENGINE_URL` reconciles. Whatever goes wrong in one of them is
written to its log and stops nobody: the routing file alone says what serves.
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
    arguments = [str(home.root), engine_url]
    _run("serving.realign", arguments, home.logs / "reconcile.log", "reconciling")


def bring_up(home: Home) -> None:
    """A store that an earlier version left becomes one of this version's, for who reads it next."""
    if home.database.exists():
        log = home.logs / "upgrade.log"
        _run("storage.upgrade", [str(home.root)], log, "bringing the store up to this version")


def _run(module: str, arguments: list[str], log: Path, what: str) -> None:
    child = children.start(module, arguments, log=log)
    try:
        code = child.wait(_WAIT_S)
        if code:
            _log.error("%s failed with code %s; %s says why", what, code, log)
    except subprocess.TimeoutExpired:
        _log.error("%s took over %s s and was ended; see %s", what, _WAIT_S, log)
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
