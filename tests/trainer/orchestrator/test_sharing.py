"""Several runs on one engine."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.errors import EngineError
from flywheel.train_section import RLSection
from trainer.orchestrator.clock import run_virtually
from trainer.orchestrator.contract import Attempt, Played
from trainer.orchestrator.driver import Outcome, orchestrate
from trainer.orchestrator.sharing import Slots
from trainer.orchestrator.simulation import Costs, World


def nothing() -> None:
    pass


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(st.floats(0.5, 4.0), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60),
)
def test_a_free_slot_goes_to_who_wants_one_and_holds_the_fewest(
    ceiling: int, weights: list[float], moves: list[tuple[int, bool]]
) -> None:
    slots = Slots(ceiling)
    for number, weight in enumerate(weights):
        slots.join(str(number), nothing, weight)
        slots.want(str(number), True)
    for number, takes in moves:
        run = str(number % len(weights))
        mine = slots.runs[run]
        if not takes and mine.held:
            slots.free(run, tokens=3)
        elif takes:
            lowest = min(one.held / one.weight for one in slots.runs.values())
            expected = slots.held < slots.limit and mine.held / mine.weight <= lowest
            assert slots.take(run) == expected
        assert slots.held <= ceiling


def test_what_one_does_not_want_the_others_have_until_it_wants_it() -> None:
    slots, woken = Slots(4), list[str]()
    slots.join("flood", lambda: woken.append("flood"))
    slots.join("late", lambda: woken.append("late"))
    slots.want("flood", True)
    assert [slots.take("flood") for _ in range(5)] == [True, True, True, True, False]
    slots.want("late", True)
    assert not slots.take("late"), "nothing is taken back"
    slots.free("flood", tokens=7)
    assert "late" in woken and not slots.take("flood") and slots.take("late")
    assert slots.tokens == {"flood": 7}
    with pytest.raises(ValueError, match="already samples"):
        slots.join("late", nothing)


class Counting(World):
    playing = 0

    async def play(self, attempt: Attempt, version: int) -> Played:
        self.playing += 1
        try:
            return await super().play(attempt, version)
        finally:
            self.playing -= 1


QUICK = Costs(1.0, 0.0)
RL = RLSection(steps=6, groups_per_step=2, group_size=4, slots=16, max_staleness=2)


async def together(
    worlds: dict[str, World], slots: Slots, rl: dict[str, RLSection]
) -> list[Outcome | BaseException]:
    work = (
        orchestrate(
            world.visits(), rl[run], [world], world, world, run=run, shared={world.name: slots}
        )
        for run, world in worlds.items()
    )
    return await asyncio.gather(*work, return_exceptions=True)


def test_a_run_that_floods_the_engine_leaves_another_its_share() -> None:
    slots = Slots(16)
    flood = Counting(lambda number, k: 50.0 + number % 7, QUICK)
    small = Counting(lambda number, k: 10.0 + number % 3, QUICK)
    seen: list[tuple[int, int]] = []

    async def scenario() -> list[Outcome | BaseException]:
        async def look() -> None:
            while True:
                await asyncio.sleep(1.0)
                seen.append((flood.playing, small.playing))

        looking = asyncio.create_task(look())
        rl = {"flood": RL.model_copy(update={"groups_per_step": 16}), "small": RL}
        found = await together({"flood": flood, "small": small}, slots, rl)
        looking.cancel()
        return found

    outcomes = run_virtually(scenario())
    assert all(isinstance(one, Outcome) for one in outcomes)
    assert max(one + other for one, other in seen) <= 16
    both = [one for one, other in seen if other]
    middle = both[len(both) // 4 : -len(both) // 4]
    assert len(middle) > 20 and max(middle) <= 8, "the flood keeps to its half"
    assert max(one for one, other in seen if not other) > 8, "and has all when it is alone"
    for name, world in (("flood", flood), ("small", small)):
        trained = sum(played.tokens for one in world.trained for played in one.rollouts)
        assert slots.tokens[name] == trained > 0, "each run's tokens are its own"
    assert slots.runs == {}


def test_a_run_that_fails_leaves_another_running() -> None:
    class Broken(World):
        async def play(self, attempt: Attempt, version: int) -> Played:
            raise EngineError("its adapter is gone")

    worlds: dict[str, World] = {
        "broken": Broken(lambda number, k: 1.0),
        "whole": World(lambda number, k: 10.0 + number % 3),
    }
    broken, whole = run_virtually(together(worlds, Slots(8), {"broken": RL, "whole": RL}))
    assert isinstance(broken, EngineError) and "its adapter is gone" in str(broken)
    assert whole == Outcome(6, 48, 0, 0)
