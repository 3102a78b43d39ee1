"""The orchestrator's seams: who plays, who learns, who publishes, and what time it is.

The same driver runs real rollouts on the real clock and simulated ones on a virtual clock. All
calls are async and may be cancelled. A version is an int: the number of optimizer steps whose
weights the engine serves; 0 = those that the run started from.
"""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from environments.attempt import Finished
from flywheel.records import Problem


class Visit(NamedTuple):
    """One group to be sampled: a problem, met once more."""

    id: str
    """Of run, environment, problem and how often it was met: the same after a restart."""
    problem: Problem
    environment: str
    """The name of one of the run's environments."""
    number: int
    """Place in the run's order, from 0."""


class Attempt(NamedTuple):
    visit: Visit
    k: int
    """Which of the group's rollouts."""
    tries: int = 1
    """How often it was started; more than 1 after a worker died."""


class Played(NamedTuple):
    """One rollout that ended, well or badly."""

    attempt: Attempt
    finished: Finished
    versions: tuple[int, ...]
    """That sampled its tokens, ascending; () = nothing was sampled."""
    tokens: int
    """Sampled."""
    started: float
    ended: float
    """Seconds on the clock."""


class Player(Protocol):
    """A worker: it plays rollouts against one engine."""

    name: str

    async def play(self, attempt: Attempt, version: int) -> Played:
        """Plays one to its end. Calls that begin after a new version was published are sampled by
        that one.

        Raises:
            EngineError: infrastructure failed it; another try may not.
        """

    async def beat(self) -> bool:
        """Whether it can play now: asked every few seconds, and answered within a bounded time."""

    async def load(self) -> "Load | None":
        """How busy its engine is; None = it does not say."""


class Load(NamedTuple):
    running: int
    """Requests that the engine computes."""
    waiting: int
    """Requests in its queue."""
    cache_use: float | None
    """Share of the KV cache in use, 0 to 1; None = not known."""


class Complete(NamedTuple):
    """A group all of whose rollouts ended."""

    visit: Visit
    played: tuple[Played, ...]
    """In the order of k."""


class Learner(Protocol):
    """Grades groups, makes batches of them, and has them trained."""

    async def complete(self, group: Complete) -> str | None:
        """Grades and keeps the group, durably. Returns why it cannot be trained on (nothing to
        learn, ungraded, failed); None = it can."""

    async def train(self, step: int, groups: tuple[str, ...], report: dict[str, Any]) -> Path:
        """Trains optimizer step `step` on these visits; returns the folder of the new version's
        weights when they are written. A step that was trained before returns at once."""


class Publisher(Protocol):
    async def publish(self, version: int, folder: Path) -> None:
        """Returns when every engine serves and confirmed the version.

        Raises:
            Refused: the engine does not serve what was trained.
            EngineError: it could not be asked.
        """


class Clock(Protocol):
    def now(self) -> float:
        """Seconds."""

    async def sleep(self, seconds: float) -> None: ...
