"""What tells this home from any other, and goes with it where it is moved to."""

from flywheel import durable
from flywheel.home import Home
from flywheel.ids import new_ulid


def home_id(home: Home) -> str:
    """The same to all that ask, also to two that ask first."""
    return durable.first(home.root / "home.id", new_ulid().encode()).decode()
