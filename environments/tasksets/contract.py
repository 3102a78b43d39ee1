"""What a task set is: problems out of a file, a folder, a package or a generator.

Enter: its configuration, in the environment's or the project's file. Leave: problems, and what
could not be read with file, line, field. Invariant: a problem's side (train, held out) follows
from its own hash and the share, so it is the same on every machine and in every order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from flywheel.errors import BadRecord
from flywheel.records import Problem

if TYPE_CHECKING:
    from environments.define import Environment

Side = Literal["train", "heldout"]


class TaskSet(BaseModel):
    """Where problems come from. `kind` is a key of `environments.tasksets.table.READERS`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: str = "auto"
    """auto = by the file's name and shape."""
    path: str = ""
    """File, folder or name, relative to the environment's file; unused by generators."""
    limit: int | None = Field(None, ge=1)
    """Problems read, at most: the first ones."""
    seed: int = 0
    """Of generators."""
    heldout_share: float = Field(0.4, ge=0, le=1)
    """1 = for evaluation only, whatever the file says."""
    heldout_slices: tuple[str, ...] = ()
    """Slices that are held out whole."""
    near_duplicate: float | None = Field(0.7, gt=0, le=1)
    """Word-trigram Jaccard from which a training problem is the same as a held-out one, and left
    out. None = only one of equal words is: for generators, whose problems share most of them."""
    options: Mapping[str, Any] = {}
    """What this kind of reader takes beside: names of fields, of a generator's tasks …"""


class Read(NamedTuple):
    problems: Iterable[Problem]
    rejects: list[BadRecord]
    """What could not be read; the first thousand."""
    left_out: Mapping[str, int] = {}
    """How many problems were, by reason."""


class Source(NamedTuple):
    """What a reader is given."""

    environment: "Environment"
    tasks: TaskSet
    path: Path
    options: Any
    """The reader's own, validated."""


class Given(NamedTuple):
    problem: Problem
    side: Side | None = None
    """What the set itself says; None = it does not."""


Drawn: TypeAlias = Iterator[Given | BadRecord]


class Options(BaseModel):
    """What any reader takes; a reader's own adds to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    system: str = ""
    """A system message before each prompt."""
    own_split: bool = True
    """False = sides follow from hashes alone, whatever the set says."""


class Reader(NamedTuple):
    """One kind of task set."""

    options: type[Options]
    recognises: Callable[[Path, Mapping[str, Any] | None], bool]
    """Whether a path, with the first row of its file where it has rows, looks like this kind."""
    read: Callable[[Source], Drawn]
