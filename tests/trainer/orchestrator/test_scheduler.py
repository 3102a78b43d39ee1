"""The scheduler's guarantees, under every order of events that Hypothesis finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.train_section import RLSection
from trainer.orchestrator.contract import Attempt, Complete, Facts, Kept, Played, Standing, Visit
from trainer.orchestrator.scheduler import Scheduler
from trainer.orchestrator.simulation import FINISHED, PROBLEM

RULES = st.builds(
    RLSection,
    steps=st.integers(1, 8),
    groups_per_step=st.integers(1, 3),
    group_size=st.integers(1, 3),
    max_staleness=st.integers(0, 4),
)


def visit(number: int) -> Visit:
    return Visit(f"v{number}", PROBLEM, "simulated", number)


def invariant(scheduler: Scheduler) -> None:
    """The module's own, and the two limits."""
    rl = scheduler.rl
    left = [one.version for one in scheduler.ready.values()]
    left += [one.version for one in scheduler.open.values()]
    for version in left:
        older = sum(other <= version for other in left)
        assert older <= rl.groups_per_step * (version + rl.max_staleness - scheduler.taken + 1)
    held = len(left) + scheduler.unpublished * rl.groups_per_step
    assert held <= scheduler.permits


class Run:
    """What was played, trained and published, event by event in a drawn order."""

    def __init__(self, rl: RLSection, standing: Standing | None = None) -> None:
        self.scheduler, self.rl = Scheduler(rl, standing), rl
        self.number = 0
        self.running: list[tuple[Attempt, int]] = []
        self.grading: list[Complete] = []
        self.publishing: list[int] = []
        self.training: int | None = None
        self.trained: list[tuple[int, str, int]] = []

    def events(self) -> list[str]:
        scheduler = self.scheduler
        found = [
            ("begin", scheduler.waiting or scheduler.room()),
            ("end", bool(self.running)),
            ("grade", bool(self.grading)),
            ("take", self.takes() and scheduler.batch() is not None),
            ("trained", self.training is not None),
            ("publish", bool(self.publishing)),
        ]
        return [name for name, possible in found if possible]

    def takes(self) -> bool:
        return self.training is None and self.scheduler.unpublished <= 1

    def happens(self, event: str, pick: int, taught: bool) -> None:
        scheduler = self.scheduler
        if event == "begin":
            if not scheduler.waiting:
                scheduler.begin(visit(self.number))
                self.number += 1
            attempt = scheduler.due()
            assert attempt is not None
            self.running.append((attempt, scheduler.published))
        elif event == "end":
            attempt, version = self.running.pop(pick % len(self.running))
            versions = tuple(range(version, scheduler.published + 1))
            complete = scheduler.ended(attempt, Played(attempt, FINISHED, versions, 1, 0.0, 1.0))
            if complete is not None:
                self.grading.append(complete)
        elif event == "grade":
            group = self.grading.pop(pick % len(self.grading))
            scheduler.graded(group, None if taught else "nothing to learn")
        elif event == "take":
            batch = scheduler.batch()
            assert batch is not None
            first = {one.version for one in batch}
            left = [one.version for one in scheduler.ready.values() if one not in batch]
            assert not left or max(first) <= min(left)
            base = scheduler.taken
            self.training = scheduler.take(batch)
            assert self.training == base + 1
            self.trained += [(base, one.id, base - one.version) for one in batch]
        elif event == "trained":
            assert self.training is not None
            self.publishing.append(self.training)
            self.training = None
        else:
            scheduler.publish(self.publishing.pop(0))


def through(world: Run, data: st.DataObject) -> None:
    """To the end, by events drawn; untaught groups are few, or it would have none."""
    draw = st.tuples(st.integers(0, 63), st.integers(0, 63), st.integers(0, 9))
    drawn = data.draw(st.lists(draw, min_size=40, max_size=40))
    turn = 0
    while not world.scheduler.done:
        events = world.events()
        assert events, "nothing can happen: the run hangs"
        which, pick, taught = drawn[turn % len(drawn)]
        world.happens(events[(which + turn) % len(events)], pick, taught > 0 or turn > 400)
        invariant(world.scheduler)
        turn += 1


@settings(max_examples=40, deadline=None)
@given(RULES, st.data())
def test_nothing_is_older_than_the_bound_nothing_is_dropped_and_it_never_hangs(
    rl: RLSection, data: st.DataObject
) -> None:
    world = Run(rl)
    through(world, data)
    assert max(age for _, _, age in world.trained) <= rl.max_staleness
    assert not world.scheduler.overaged()
    names = [name for _, name, _ in world.trained]
    assert len(names) == len(set(names)) == rl.steps * rl.groups_per_step
    assert not world.scheduler.open and not world.scheduler.ready, "nothing was played in vain"
    assert world.scheduler.published == rl.steps


@settings(max_examples=20, deadline=None)
@given(RULES, st.data(), st.integers(1, 120))
def test_a_run_that_was_killed_anywhere_keeps_the_guarantees(
    rl: RLSection, data: st.DataObject, killed_after: int
) -> None:
    world = Run(rl)
    for turn in range(killed_after):
        events = world.events()
        if not events:
            break
        world.happens(events[(turn * 7) % len(events)], turn, taught=True)
    before = world.scheduler
    pending = [name for base, name, _ in world.trained if base + 1 == world.training]
    steps = before.taken - bool(pending)
    kept = tuple(
        Kept(one.id, one.number, (Facts((one.version,), 1, 1.0),)) for one in before.ready.values()
    )
    again = Run(rl, Standing(steps, None, tuple(pending), kept))
    again.number = world.number
    again.training = steps + 1 if pending else None
    invariant(again.scheduler)
    through(again, data)
    ages = [age for _, _, age in (*world.trained, *again.trained)]
    assert max(ages, default=0) <= rl.max_staleness
    names = [name for _, name, _ in (*world.trained, *again.trained)]
    assert len(names) == len(set(names)) == rl.steps * rl.groups_per_step


def test_a_run_that_goes_on_under_a_lower_bound_drops_what_is_too_old() -> None:
    rl = RLSection(steps=9, groups_per_step=1, group_size=1, max_staleness=2)
    kept = (Kept("old", 0, (Facts((3,), 1, 1.0),)), Kept("new", 1, (Facts((5, 6), 1, 1.0),)))
    scheduler = Scheduler(rl, Standing(trained=6, kept=kept))
    (old,) = scheduler.overaged()
    assert old.id == "old"
    scheduler.drop(old)
    batch = scheduler.batch()
    assert batch is not None and [one.id for one in batch] == ["new"]


def test_the_next_step_names_whom_it_waits_for() -> None:
    rl = RLSection(steps=9, groups_per_step=1, group_size=1, max_staleness=1)
    scheduler = Scheduler(rl)
    for number in range(2):
        scheduler.begin(visit(number))
    slow, quick = scheduler.due(), scheduler.due()
    assert slow is not None and quick is not None and not scheduler.room()

    def end(attempt: Attempt, version: int) -> None:
        complete = scheduler.ended(attempt, Played(attempt, FINISHED, (version,), 1, 0.0, 1.0))
        assert complete is not None
        scheduler.graded(complete, None)

    end(quick, 0)
    batch = scheduler.batch()
    assert batch is not None, "the other has one more step until its deadline"
    scheduler.publish(scheduler.take(batch))
    scheduler.begin(visit(2))
    quick = scheduler.due()
    assert quick is not None
    end(quick, 1)
    assert scheduler.batch() is None
    assert [one.visit.number for one in scheduler.stragglers()] == [0]
    end(slow, 0)
    batch = scheduler.batch()
    assert batch is not None and [one.id for one in batch] == ["v0"]


def test_masking_never_waits_and_drops_only_what_would_be_masked_whole() -> None:
    rl = RLSection(steps=9, groups_per_step=1, group_size=1, max_staleness=1, overaged="mask")
    kept = (Kept("half", 0, (Facts((2, 5), 9, 1.0),)), Kept("whole", 1, (Facts((2, 3), 9, 1.0),)))
    scheduler = Scheduler(rl, Standing(trained=6, kept=kept))
    scheduler.begin(visit(2))
    assert [one.id for one in scheduler.overaged()] == ["whole"]
    scheduler.drop(scheduler.ready["whole"])
    batch = scheduler.batch()
    assert batch is not None and [one.id for one in batch] == ["half"]
