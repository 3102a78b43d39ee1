"""Where what could not be understood goes: its bytes and the reason, never dropped.

One entry is two files in `quarantine/`: NAME with the bytes as they were, NAME.why with the reason.
The name comes from where it was found, so that finding it again replaces it.
"""

import json
import os
from pathlib import Path

from flywheel import durable
from flywheel.home import Home


def quarantine(home: Home, name: str, data: bytes, reason: str) -> Path:
    """Keeps `data` under `name`, with the reason beside it."""
    path = home.quarantine / name
    durable.write(path, data)
    _explain(path, reason)
    return path


def quarantine_file(home: Home, path: Path, reason: str) -> Path:
    """Moves a whole file there."""
    home.quarantine.mkdir(parents=True, exist_ok=True)
    target = home.quarantine / path.name
    _explain(target, reason)
    os.replace(path, target)
    durable.sync_folder(home.quarantine)
    durable.sync_folder(path.parent)
    return target


def _explain(path: Path, reason: str) -> None:
    text = json.dumps({"name": path.name, "reason": reason}, ensure_ascii=False)
    durable.write(path.with_name(path.name + ".why"), text.encode())
