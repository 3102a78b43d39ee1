"""What a module of the trainer is told to do once, in a process of its own (`trainer/ordered.py`):
torch's memory goes with it.

Enters an order; leaves whatever files it names. Order and log stay in the folder.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from flywheel import children, durable
from flywheel.errors import FlywheelError, Refused


def carried_out(
    module: str, order: dict[str, Any], folder: Path, *, minutes: float, failed: str
) -> None:
    """
    Args:
        failed: how an error begins.

    Raises:
        Refused: what the order names cannot be used.
        FlywheelError: it could not be done, or not within that time.
    """
    path, log = folder / f"{module}.json", folder / f"{module}.log"
    durable.write(path, json.dumps(order).encode())
    log.unlink(missing_ok=True)
    child = children.start(module, [str(path)], log=log)
    try:
        code = child.wait(minutes * 60)
    except subprocess.TimeoutExpired as error:
        raise FlywheelError(f"{failed}: it took over {minutes:g} minutes; see {log}") from error
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
    if code:
        said = log.read_text(errors="replace").strip().rpartition("error: ")[2][-1000:]
        kind = Refused if code == Refused.exit_code else FlywheelError
        raise kind(f"{failed}: {said or f'see {log}'}")
