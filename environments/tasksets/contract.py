"""What a task set is: problems out of a file, a folder, a package or a generator.

Enter: its configuration, in the environment's or the project's file. Leave: problems, and what
could not be read with file, line, field. Invariant: a problem's side (train, held out) follows
from its own hash and the share, so it is the same on every machine and in every order.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from flywheel.errors import BadRecord
from flywheel.records import Problem


class TaskSet(BaseModel):
    """Where problems come from. `kind` is a key of `environments.tasksets.table.READERS`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: str = "auto"
    """auto = by the file's name and shape."""
    path: str = ""
    """File, folder or name, relative to the environment's file; unused by generators."""
    limit: int | None = Field(None, ge=1)
    seed: int = 0
    """Of generators."""
    heldout_share: float = Field(0.4, ge=0, le=1)
    options: Mapping[str, Any] = {}
    """What this kind of reader takes beside: names of fields, of a generator's tasks …"""


class Read(NamedTuple):
    problems: Iterable[Problem]
    rejects: list[BadRecord]
    """Filled while `problems` is read."""
