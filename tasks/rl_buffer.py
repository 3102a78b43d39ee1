"""The run's groups on disk: what was sampled, graded and made into samples, and is not lost again.

Enter groups whose rollouts have all ended; leaves, after whatever was killed, each of them once: to
be trained on, trained, or left out with its reason. One file a visit, put by one rename, so that a
group that is there is whole. Which step trains it is written before its batch is put; its samples
go when it is trained, and what became of it stays.
"""

from pathlib import Path

import msgspec

from flywheel.durable import write
from flywheel.errors import CorruptFile
from flywheel.records import Record
from trainer.samples import Sample


class Answered(Record, frozen=True, kw_only=True):
    """One rollout, without what the store has of it."""

    trace_id: str
    reward: float | None
    reason: str | None = None
    """Why the reward is None."""
    tokens: int = 0
    """Sampled."""
    versions: tuple[int, ...] = ()
    """That sampled them, ascending."""
    sampled: tuple[int, ...] = ()
    """Tokens by each of `versions`, parallel to it; () = not known."""
    cut: bool = False
    """Its last answer ended at a limit of length."""
    seconds: float = 0.0
    """It took."""


class Buffered(Record, frozen=True, kw_only=True):
    """A group of one visit to a problem."""

    visit: str
    number: int
    """Place in the run's order."""
    environment: str
    problem_id: str
    slice: str
    rollouts: tuple[Answered, ...]
    """In the order of k."""
    samples: tuple[Sample, ...] = ()
    """() = nothing to train on, or trained already."""
    lost: int = 0
    """Rollouts that gave nothing."""
    refused: str | None = None
    """Why the group is not trained on."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """What of it was left out, by kind."""


class Buffer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "groups"

    def keep(self, group: Buffered) -> None:
        """Atomic and durable."""
        write(self._path(group.visit), msgspec.msgpack.encode(group))

    def find(self, visit: str) -> Buffered | None:
        """
        Raises:
            CorruptFile: it is not what was kept.
        """
        try:
            return _read(self._path(visit))
        except FileNotFoundError:
            return None

    def all(self) -> list[Buffered]:
        """Every group that ended, in the run's order."""
        found = [_read(path) for path in self._folder.glob("*.group")]
        return sorted(found, key=lambda group: group.number)

    def assign(self, step: int, groups: tuple[str, ...]) -> None:
        """These groups are trained by this step, whatever happens from here on."""
        write(self._folder / f"step-{step:06d}.json", msgspec.json.encode(groups))

    def assigned(self) -> dict[int, tuple[str, ...]]:
        """Step -> the visits whose groups it trains."""
        found = {}
        for path in sorted(self._folder.glob("step-*.json")):
            found[int(path.stem.partition("-")[2])] = msgspec.json.decode(
                path.read_bytes(), type=tuple[str, ...]
            )
        return found

    def trained(self, visit: str) -> None:
        """Lets the group's samples go."""
        group = self.find(visit)
        if group is not None and group.samples:
            self.keep(msgspec.structs.replace(group, samples=()))

    def _path(self, visit: str) -> Path:
        return self._folder / f"{visit}.group"


def _read(path: Path) -> Buffered:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Buffered)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{path} is not a group of a run: {error}") from error
