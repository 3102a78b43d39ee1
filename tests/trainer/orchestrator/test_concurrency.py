"""Slots follow the engine's load."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.train_section import RLSection
from trainer.orchestrator.concurrency import adapted
from trainer.orchestrator.contract import Attempt, Load, Played
from trainer.orchestrator.sharing import Slots
from trainer.orchestrator.simulation import Costs, World, simulate


def slots(ceiling: int, limit: int, held: int) -> Slots:
    made = Slots(ceiling)
    made.join("run", lambda: None)
    made.limit = limit
    made.runs["run"].held = held
    return made


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(0, 600), st.integers(0, 600), st.floats(0, 1) | st.none())
def test_the_limit_stays_between_one_and_the_ceiling(
    ceiling: int, held: int, waiting: int, cache: float | None
) -> None:
    for limit in {1, ceiling}:
        found = adapted(slots(ceiling, limit, held), Load(held, waiting, cache))
        assert 1 <= found <= ceiling


def test_a_queue_or_a_full_cache_lowers_it_and_room_raises_it() -> None:
    assert adapted(slots(100, 100, 100), Load(60, 40, 0.5)) == 80
    assert adapted(slots(100, 100, 100), Load(100, 0, 0.97)) == 80
    assert adapted(slots(100, 50, 50), Load(50, 0, 0.5)) == 55
    assert adapted(slots(100, 50, 50), Load(50, 0, None)) == 55
    assert adapted(slots(100, 50, 50), Load(50, 0, 0.9)) == 50, "between the two it stays"
    assert adapted(slots(100, 50, 20), Load(20, 0, 0.1)) == 50, "more would not be used"


def test_it_is_lowered_again_only_when_the_last_cut_has_shown() -> None:
    """Rollouts are long: until enough have ended, the queue says nothing new."""
    assert adapted(slots(100, 80, 100), Load(60, 40, 0.5)) == 80
    assert adapted(slots(100, 80, 80), Load(60, 20, 0.5)) == 64


def test_a_run_finds_what_its_engine_takes() -> None:
    class Engine(World):
        """Takes 20 at once; others queue, and take longer."""

        playing = 0
        seen: list[int]

        async def play(self, attempt: Attempt, version: int) -> Played:
            self.playing += 1
            self.seen.append(self.playing)
            try:
                return await super().play(attempt, version)
            finally:
                self.playing -= 1

        async def load(self) -> Load:
            return Load(min(self.playing, 20), max(self.playing - 20, 0), None)

    world = Engine(lambda number, k: 20.0 + (number * 7 + k) % 11, Costs(1.0, 0.0))
    world.seen = []
    rl = RLSection(steps=40, groups_per_step=8, group_size=4, slots=128, max_staleness=8)
    assert simulate(world, rl).version == 40
    settled = world.seen[len(world.seen) // 2 : -64]
    assert world.seen[127] == 128 and min(settled) >= 12 and max(settled) <= 40
