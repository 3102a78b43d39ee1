"""The orchestrator's seams: who plays, who learns, who publishes.

The same driver runs real rollouts in real time and simulated ones in virtual time: the clock is
always the event loop's. All calls are async and may be cancelled. A version is an int: the number
of optimizer steps whose weights the engine serves; 0 = those that the run started from.
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

    @property
    def key(self) -> tuple[str, int, int]:
        return self.visit.id, self.k, self.tries


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
    """Seconds, on the event loop's clock."""
    sampled: tuple[int, ...] = ()
    """Tokens by each of `versions`, parallel to it; () = not known."""


class Lost(NamedTuple):
    """A rollout that gave nothing."""

    attempt: Attempt
    reason: str


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
    lost: tuple[Lost, ...] = ()
    """Those of its rollouts that are not in `played`: no worker could play them, or they were
    stopped at the limit."""


class Facts(NamedTuple):
    """What the scheduling and its report need of one rollout."""

    versions: tuple[int, ...]
    tokens: int
    seconds: float
    sampled: tuple[int, ...] = ()


def facts_of(group: Complete) -> tuple[Facts, ...]:
    return tuple(
        Facts(one.versions, one.tokens, one.ended - one.started, one.sampled)
        for one in group.played
    )


class Kept(NamedTuple):
    """A complete group that can be trained on and is in no batch yet."""

    visit: str
    """Its id."""
    number: int
    """The visit's."""
    rollouts: tuple[Facts, ...]


class Standing(NamedTuple):
    """How far a run is: what it goes on from after a restart."""

    trained: int = 0
    """Optimizer steps whose weights are written."""
    folder: Path | None = None
    """Of the newest version's weights; None = those that the run starts from."""
    pending: tuple[str, ...] = ()
    """Visits in the batch of step `trained` + 1, which was put and not trained; () = none was."""
    kept: tuple[Kept, ...] = ()
    consumed: frozenset[str] = frozenset()
    """Ids of all visits that completed: trained, pending, kept, or recorded why not. Others are
    played again from their start."""


class Learner(Protocol):
    """Grades groups, makes batches of them, and has them trained."""

    async def standing(self) -> Standing:
        """Asked once, before anything is played."""

    async def complete(self, group: Complete) -> str | None:
        """Grades and keeps the group, durably. Returns why it cannot be trained on (nothing to
        learn, ungraded, failed); None = it can."""

    async def drop(self, visit: str, reason: str) -> None:
        """Records that a kept group will not be trained on."""

    async def train(self, step: int, groups: tuple[str, ...], report: dict[str, Any]) -> Path:
        """Trains optimizer step `step` on these visits, from version `step` - 1; returns the folder
        of the new version's weights when they are written. A step that was trained before returns
        at once; one whose batch was put before is trained on that batch. Where overaged tokens are
        masked, those sampled before version `report["mask_below"]` are not trained on."""

    def words(self) -> str:
        """What a person is told of rewards and the last step beside what is played; "" = nothing
        is known yet."""


class Publisher(Protocol):
    async def publish(self, version: int, folder: Path) -> None:
        """Returns when every engine serves and confirmed the version.

        Raises:
            Refused: the engine does not serve what was trained.
            EngineError: it could not be asked.
        """


class Clock(Protocol):
    """`trainer.orchestrator.clock.LoopClock`, real or virtual as the event loop is."""

    def now(self) -> float:
        """Seconds."""

    async def sleep(self, seconds: float) -> None: ...
