"""The readers of task sets, by kind; one file each beside this one."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from environments.tasksets.contract import Read

if TYPE_CHECKING:
    from environments.define import Environment

READERS: dict[str, Callable[["Environment"], Read]] = {}


def read(environment: "Environment") -> Read:
    """The problems of the environment's task set; none where it has none."""
    if environment.tasks is None:
        return Read((), [])
    return READERS[environment.tasks.kind](environment)
