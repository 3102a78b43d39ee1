"""What tells this home from any other, and goes with it where it is moved to."""

import contextlib
import os

from flywheel import durable
from flywheel.home import Home
from flywheel.ids import new_ulid


def home_id(home: Home) -> str:
    """The same to all that ask, also to two that ask first."""
    path = home.root / "home.id"
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    own = path.with_name(f".home.id-{new_ulid()}")
    durable.write(own, new_ulid().encode())
    with contextlib.suppress(FileExistsError):
        os.link(own, path)
    own.unlink()
    durable.sync_folder(home.root)
    return path.read_text()
