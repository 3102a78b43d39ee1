"""What may be played and trained next: a state machine that knows neither time nor workers.

Two limits. Slots (who has one calls `due`) are freed when a rollout ends. Permits, (bound + 1) x
groups a step, are held by a group from its first rollout until the version that trained it is
published. The oldest complete groups are trained first, and only if every other group, running or
complete, can still meet its own deadline; otherwise the trainer waits (`stragglers`).

Invariant. Let `taken` be the steps whose batch was taken, so that the next one trains from that
version. For every version s, the untrained groups that began at s or before are at most
groups x (s + bound - taken + 1), the room that the steps until their deadline have. Permits keep it
as groups begin, the waiting rule as batches are taken; so with `wait` nothing older than the bound
is ever trained, nothing is dropped, and some batch is always possible once rollouts end.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from flywheel.train_section import RLSection
from trainer.orchestrator.contract import (
    Attempt,
    Complete,
    Facts,
    Kept,
    Lost,
    Played,
    Standing,
    Visit,
    facts_of,
)


@dataclass
class Open:
    """A group that is being played or graded."""

    visit: Visit
    version: int
    """Published when it began."""
    waiting: deque[Attempt]
    running: dict[int, Attempt] = field(default_factory=dict)
    """By k; also one that failed and rests before its next try."""
    played: list[Played] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)


@dataclass(frozen=True)
class Ready:
    """A complete group that waits for its batch."""

    id: str
    number: int
    version: int
    """The oldest that sampled in it."""
    newest: int
    rollouts: tuple[Facts, ...]


class Scheduler:
    def __init__(self, rl: RLSection, standing: Standing | None = None) -> None:
        standing = standing or Standing()
        self.rl = rl
        self.taken = self.published = standing.trained
        self.open: dict[str, Open] = {}
        self.ready: dict[str, Ready] = {one.visit: _ready(one, self.taken) for one in standing.kept}
        self.exhausted = False
        """Whether the source has no further visit."""
        self._held: dict[int, int] = {}
        """Step whose version is not published yet -> permits of the groups in its batch."""
        if standing.pending:
            self._hold(len(standing.pending))

    # --- groups begin, and their rollouts

    @property
    def permits(self) -> int:
        return (self.rl.max_staleness + 1) * self.rl.groups_per_step

    @property
    def untrained(self) -> int:
        """Groups that are in no batch yet."""
        return len(self.open) + len(self.ready)

    def room(self) -> bool:
        """Whether another group may begin: there is a permit, and a step left to train it."""
        left = (self.rl.steps - self.taken) * self.rl.groups_per_step
        held = self.untrained + sum(self._held.values())
        return not self.exhausted and held < self.permits and self.untrained < left

    def begin(self, visit: Visit) -> None:
        attempts = deque(Attempt(visit, k) for k in range(self.rl.group_size))
        self.open[visit.id] = Open(visit, self.published, attempts)

    def due(self) -> Attempt | None:
        """The next attempt to start, the oldest group's first; it is running from now."""
        for group in self.open.values():
            if group.waiting:
                attempt = group.waiting.popleft()
                group.running[attempt.k] = attempt
                return attempt
        return None

    @property
    def waiting(self) -> bool:
        """Whether `due` would give one."""
        return any(group.waiting for group in self.open.values())

    def again(self, attempt: Attempt) -> None:
        """It failed, and is to be tried once more, before others; unless it was stopped since."""
        group = self.open.get(attempt.visit.id)
        if group is not None and group.running.pop(attempt.k, None) is not None:
            group.waiting.appendleft(attempt._replace(tries=attempt.tries + 1))

    def ended(self, attempt: Attempt, result: Played | Lost) -> Complete | None:
        """Returns the group when this was its last rollout; it then waits for `graded`."""
        group = self.open[attempt.visit.id]
        if group.running.pop(attempt.k, None) is None:
            group.waiting.remove(attempt)
        if isinstance(result, Lost):
            group.lost.append(result)
        else:
            group.played.append(result)
        if group.running or group.waiting:
            return None
        played = sorted(group.played, key=lambda one: one.attempt.k)
        return Complete(group.visit, tuple(played), tuple(group.lost))

    def graded(self, group: Complete, reason: str | None) -> None:
        """`reason`: why it cannot be trained on, which gives its permit back; None = it can."""
        begun = self.open.pop(group.visit.id).version
        if reason is None:
            kept = Kept(group.visit.id, group.visit.number, facts_of(group))
            self.ready[kept.visit] = _ready(kept, begun)

    # --- batches

    @property
    def done(self) -> bool:
        over = self.taken >= self.rl.steps or (self.exhausted and not self.untrained)
        return over and not self._held

    def overaged(self) -> list[Ready]:
        """Ready groups that no step may train any more. With `wait` there are none, unless a run
        went on under a lower bound than it had."""
        masks = self.rl.overaged == "mask"
        return [
            one
            for one in self.ready.values()
            if (one.newest if masks else one.version) < self.oldest
        ]

    @property
    def oldest(self) -> int:
        """The oldest version whose tokens the next step may train."""
        return self.taken - self.rl.max_staleness

    def drop(self, group: Ready) -> None:
        del self.ready[group.id]

    def batch(self) -> tuple[Ready, ...] | None:
        """The groups that the next step trains, oldest first; None = not yet."""
        chosen = self._oldest()
        if not chosen or (self.rl.overaged != "mask" and self._late(chosen) is not None):
            return None
        return chosen

    def stragglers(self) -> list[Attempt]:
        """Where enough groups are ready and the next step waits all the same: the oldest running
        rollouts that it waits for, of as few groups as must end before it can go on."""
        chosen = self._oldest()
        late = self._late(chosen) if chosen else None
        if late is None:
            return []
        version, excess = late
        older = [one for one in self.open.values() if one.version <= version]
        older.sort(key=lambda one: (_playing(one), one.version, one.visit.number))
        return [
            attempt for one in older[:excess] for attempt in (*one.running.values(), *one.waiting)
        ]

    def take(self, batch: Iterable[Ready]) -> int:
        """The batch is being trained from now, by the step that this returns."""
        chosen = list(batch)
        for one in chosen:
            del self.ready[one.id]
        return self._hold(len(chosen))

    def publish(self, version: int) -> None:
        """The engines serve it: the permits of what trained it are free."""
        self.published = version
        del self._held[version]

    @property
    def unpublished(self) -> int:
        """Batches taken whose version is not served yet."""
        return len(self._held)

    def _hold(self, groups: int) -> int:
        self.taken += 1
        self._held[self.taken] = groups
        return self.taken

    def _oldest(self) -> tuple[Ready, ...]:
        if self.taken >= self.rl.steps:
            return ()
        size = self.rl.groups_per_step
        if len(self.ready) < size and (self.open or not self.exhausted):
            return ()
        ordered = sorted(self.ready.values(), key=lambda one: (one.version, one.number))
        return tuple(ordered[:size])

    def _late(self, chosen: tuple[Ready, ...]) -> tuple[int, int] | None:
        """If `chosen` is trained next: the oldest version of which more groups are left than its
        deadline has room for, and how many more. None = all can be trained in time."""
        without = {one.id for one in chosen}
        left = [one.version for one in self.ready.values() if one.id not in without]
        left += [one.version for one in self.open.values()]
        left.sort()
        for place, version in enumerate(left, start=1):
            room = self.rl.groups_per_step * (version + self.rl.max_staleness - self.taken)
            if place > room and (place == len(left) or left[place] > version):
                return version, place - max(room, 0)
        return None


def _playing(group: Open) -> bool:
    return bool(group.running or group.waiting)


def _ready(kept: Kept, begun: int) -> Ready:
    sampled = [version for one in kept.rollouts for version in one.versions] or [begun]
    return Ready(kept.visit, kept.number, min(sampled), max(sampled), kept.rollouts)
