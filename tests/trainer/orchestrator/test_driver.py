"""The whole orchestrator in virtual time: what holds whatever rollouts last and whoever fails."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from flywheel.errors import EngineError, Refused
from flywheel.progress import listen
from flywheel.train_section import RLSection
from trainer.orchestrator.clock import run_virtually
from trainer.orchestrator.contract import Attempt, Complete, Played
from trainer.orchestrator.crew import GONE_S
from trainer.orchestrator.driver import Outcome, orchestrate
from trainer.orchestrator.rollouts import TAUGHT_NOTHING, TRIES
from trainer.orchestrator.simulation import (
    Costs,
    Durations,
    World,
    heavy_tailed,
    measured,
    simulate,
)

FEW = settings(deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
"""Not shrunk: a failing example is small enough."""
RULES = st.builds(
    RLSection,
    steps=st.integers(1, 8),
    groups_per_step=st.integers(1, 4),
    group_size=st.integers(1, 3),
    max_staleness=st.integers(0, 4),
    slots=st.integers(2, 16),
    overaged=st.sampled_from(["wait", "mask", "stop"]),
)
COSTS = st.tuples(st.sampled_from([0.0, 10.0, 300.0]), st.sampled_from([0.0, 5.0, 100.0]))


def short(seed: int) -> Durations:
    return heavy_tailed(seed, median=60.0)


class Watched(World):
    """Counts what plays."""

    playing = most = cancelled = begun = 0

    async def play(self, attempt: Attempt, version: int) -> Played:
        assert version == max(self.published, default=0)
        self.begun += 1
        self.playing += 1
        self.most = max(self.most, self.playing)
        try:
            return await super().play(attempt, version)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.playing -= 1


def ages(world: World) -> list[int]:
    return [one.step - 1 - played.versions[0] for one in world.trained for played in one.rollouts]


def trained_visits(world: World) -> list[str]:
    """One entry a group, in the order of training."""
    names = [played.attempt.visit.id for one in world.trained for played in one.rollouts]
    return list(dict.fromkeys(names))


@settings(FEW, max_examples=30)
@given(RULES, COSTS, st.integers(0, 99))
def test_every_run_ends_within_its_limits(
    rl: RLSection, costs: tuple[float, float], seed: int
) -> None:
    world = Watched(short(seed), Costs(*costs))
    outcome = simulate(world, rl)
    assert outcome.version == rl.steps == len(world.trained) == max(world.published)
    assert world.most <= rl.slots and world.playing == 0
    assert len(trained_visits(world)) == rl.steps * rl.groups_per_step
    assert not world.kept and not world.dropped
    for one in world.trained:
        for played in one.rollouts:
            first, last = played.versions[0], played.versions[-1]
            assert played.versions == tuple(range(first, last + 1)), "each update is survived"
            assert len(played.sampled) == len(played.versions)
    if rl.overaged == "wait":
        assert outcome.dropped == world.cancelled == 0
        assert measured(world, rl, outcome).duration == pytest.approx(1.0)
    if rl.overaged != "mask":
        assert max(ages(world)) <= rl.max_staleness
    if rl.overaged == "stop":
        assert outcome.dropped == world.cancelled
    assert outcome.ended == world.begun


@settings(FEW, max_examples=15)
@given(RULES, st.integers(0, 99))
def test_a_bound_of_0_is_the_synchronous_loop_step_for_step(rl: RLSection, seed: int) -> None:
    rl = rl.model_copy(update={"max_staleness": 0, "overaged": "wait"})
    world = World(short(seed))
    simulate(world, rl)
    size = rl.groups_per_step
    for base, one in enumerate(world.trained):
        numbers = [played.attempt.visit.number for played in one.rollouts]
        expected = range(base * size, (base + 1) * size)
        assert numbers == [number for number in expected for _ in range(rl.group_size)]
        assert all(played.versions == (base,) for played in one.rollouts)


def test_the_same_run_is_the_same_twice() -> None:
    rl = RLSection(steps=6, groups_per_step=3, group_size=2, slots=5)
    told = []
    for _ in range(2):
        world = World(short(3))
        simulate(world, rl)
        told.append((world.trained, world.published))
    assert told[0] == told[1]


@settings(FEW, max_examples=20)
@given(RULES, st.integers(0, 99), st.lists(st.floats(0, 900), min_size=1, max_size=4))
def test_killed_at_any_moment_it_trains_no_problem_twice_and_loses_none(
    rl: RLSection, seed: int, kills: list[float]
) -> None:
    rl = rl.model_copy(update={"overaged": "wait"})
    world = Watched(short(seed))

    async def killed_and_started_again() -> Outcome:
        for after in kills:
            try:
                async with asyncio.timeout(after):
                    return await orchestrate(world.visits(), rl, [world], world, world)
            except TimeoutError:
                assert world.playing == 0
        return await orchestrate(world.visits(), rl, [world], world, world)

    outcome = run_virtually(killed_and_started_again())
    assert outcome.version == rl.steps == len(world.trained)
    visits = trained_visits(world)
    assert sorted(visits) == sorted(f"visit-{number}" for number in range(len(visits)))
    assert len(visits) == rl.steps * rl.groups_per_step
    played = sum(len(one.rollouts) for one in world.trained)
    assert played == len(visits) * rl.group_size, "none of them twice"
    assert max(ages(world)) <= rl.max_staleness


class Refusing(World):
    async def complete(self, group: Complete) -> str | None:
        self.consumed.add(group.visit.id)
        if group.visit.number % 3 == 0:
            return "nothing to learn"
        return await super().complete(group)


def test_groups_that_teach_nothing_are_replaced() -> None:
    rl = RLSection(steps=5, groups_per_step=4, group_size=2, slots=6, max_staleness=1)
    world = Refusing(short(1))
    outcome = simulate(world, rl)
    assert len(trained_visits(world)) == 20 and outcome.refused >= 9 and outcome.dropped == 0


def test_a_run_that_learns_nothing_stops_with_the_reason() -> None:
    class Hopeless(World):
        async def complete(self, group: Complete) -> str | None:
            return "all answers are wrong"

    rl = RLSection(steps=5, groups_per_step=2, group_size=2, slots=6)
    with pytest.raises(Refused, match="all answers are wrong") as caught:
        simulate(Hopeless(short(1)), rl)
    assert f"{TAUGHT_NOTHING * 2} groups in a row" in str(caught.value)


@settings(FEW, max_examples=15)
@given(st.integers(0, 99), st.floats(0.0, 0.3))
def test_rollouts_that_infrastructure_fails_are_tried_again(seed: int, share: float) -> None:
    chance = random.Random(seed)

    class Flaky(World):
        async def play(self, attempt: Attempt, version: int) -> Played:
            if chance.random() < share:
                await asyncio.sleep(1.0)
                raise EngineError("the connection was reset")
            return await super().play(attempt, version)

    rl = RLSection(steps=4, groups_per_step=2, group_size=2, slots=4, max_staleness=2)
    world = Flaky(short(seed))
    outcome = simulate(world, rl)
    given_up = sum(len(one.rollouts) for one in world.trained)
    assert given_up + outcome.dropped == 4 * 2 * 2
    assert max(ages(world)) <= 2


def test_a_run_in_which_all_fails_stops_with_the_reason_instead_of_spinning() -> None:
    class Broken(World):
        tried = 0

        async def play(self, attempt: Attempt, version: int) -> Played:
            self.tried += 1
            raise EngineError("the engine is out of memory")

    rl = RLSection(slots=4, max_failed=5)
    world = Broken(short(0))
    with pytest.raises(EngineError, match=r"5 rollouts in a row failed.*out of memory"):
        simulate(world, rl)
    assert world.tried <= 5 * TRIES + 4 * TRIES


def test_a_fault_of_ours_ends_the_run_as_it_is() -> None:
    class Wrong(World):
        async def train(self, step: int, groups: tuple[str, ...], report: dict[str, Any]) -> Path:
            raise KeyError("loss")

    with pytest.raises(KeyError, match="loss"):
        simulate(Wrong(short(0)), RLSection(steps=2, groups_per_step=1, group_size=1))


class Mortal(World):
    """Dies at a time: what it plays hangs, and it beats no more; or comes back."""

    dies, back = 100.0, 1e9
    silent = False
    played = 0

    def lives(self) -> bool:
        return not self.dies <= asyncio.get_running_loop().time() < self.back

    async def play(self, attempt: Attempt, version: int) -> Played:
        if not self.lives():
            await asyncio.sleep(1e9)
        played = await super().play(attempt, version)
        if not self.lives():
            await asyncio.sleep(1e9)
        self.played += 1
        return played

    async def beat(self) -> bool:
        if self.silent and not self.lives():
            await asyncio.sleep(1e9)
        return self.lives()


@pytest.mark.parametrize("silent", [False, True])
def test_a_dead_workers_rollouts_are_played_elsewhere(silent: bool) -> None:
    world, dead = World(short(0), name="alive"), Mortal(short(0), name="dead")
    dead.silent = silent
    rl = RLSection(steps=4, groups_per_step=2, group_size=2, slots=6, max_staleness=2)
    outcome = run_virtually(orchestrate(world.visits(), rl, [dead, world], world, world))
    assert outcome.dropped == 0 and len(trained_visits(world)) == 8
    tries = {played.attempt.tries for one in world.trained for played in one.rollouts}
    assert 2 in tries, "some were begun by the one that died"


def test_a_worker_that_comes_back_plays_again() -> None:
    world = Mortal(short(0))
    world.back = 400.0
    rl = RLSection(steps=3, groups_per_step=2, group_size=2, slots=6, max_staleness=2)
    assert simulate(world, rl).version == 3 and world.played >= 12


class Ending(World):
    """Ends at a time, and is back later: what it plays fails at once, and so does what it is given
    meanwhile."""

    def lives(self) -> bool:
        return not 100.0 <= asyncio.get_running_loop().time() < 140.0

    async def play(self, attempt: Attempt, version: int) -> Played:
        playing = asyncio.create_task(super().play(attempt, version))
        while not playing.done():
            await asyncio.wait({playing}, timeout=1.0)
            if not self.lives():
                playing.cancel()
                raise EngineError("the connection was reset")
        return playing.result()

    async def publish(self, version: int, folder: Path) -> None:
        if not self.lives():
            raise EngineError("the connection was refused")
        await super().publish(version, folder)

    async def beat(self) -> bool:
        return self.lives()


def test_a_version_waits_for_an_engine_that_is_started_again() -> None:
    world = Ending(lambda number, k: 30.0, Costs(25.0, 0.0))
    rl = RLSection(steps=6, groups_per_step=2, group_size=2, slots=8, max_staleness=4)
    assert simulate(world, rl).version == 6


def test_an_engine_that_ends_and_is_back_costs_each_rollout_one_try() -> None:
    world = Ending(short(0))
    rl = RLSection(steps=3, groups_per_step=4, group_size=4, slots=48, max_failed=2)
    outcome = simulate(world, rl)
    assert (outcome.version, outcome.dropped) == (3, 0)
    tries = [played.attempt.tries for one in world.trained for played in one.rollouts]
    assert max(tries) == 2


def test_a_run_whose_workers_are_all_gone_says_so() -> None:
    world = Mortal(short(0))
    with pytest.raises(EngineError, match=f"no engine has answered for {GONE_S:.0f} s"):
        simulate(world, RLSection(steps=3))


def test_masked_steps_are_told_from_where_to_mask_and_how_much() -> None:
    rl = RLSection(
        steps=12, groups_per_step=2, group_size=2, slots=8, max_staleness=1, overaged="mask"
    )
    world = World(short(5))
    outcome = simulate(world, rl)
    assert max(ages(world)) > 1 and outcome.dropped == 0
    assert [one.report["mask_below"] for one in world.trained] == [
        float(one.step - 2) for one in world.trained
    ]
    told = sum(one.report["overaged_tokens"] for one in world.trained)
    trained = sum(played.tokens for one in world.trained for played in one.rollouts)
    assert told == pytest.approx(measured(world, rl, outcome).overaged * trained) and told > 0


def test_what_ended_and_what_is_ready_is_told_as_it_comes() -> None:
    class Telling(World):
        def words(self) -> str:
            return "mean reward 0.5"

    told: list[tuple[int, int | None, str]] = []
    stop = listen(lambda step, done, total, note: told.append((done, total, note)))
    try:
        simulate(Telling(short(1)), RLSection(steps=2, groups_per_step=2, group_size=2, slots=4))
    finally:
        stop()
    assert told[0] == (0, 2, "rollouts ended: 1; 0 of 2 groups ready; mean reward 0.5")
    assert any("1 of 2 groups ready" in note for _, _, note in told)
    assert max(done for done, _, _ in told) <= 2


def test_the_same_code_runs_on_the_real_clock() -> None:
    rl = RLSection(steps=3, groups_per_step=2, group_size=2, slots=4, max_staleness=1)
    world = World(lambda number, k: 0.001 * (number % 3 + k), Costs(0.001, 0.001))
    outcome = asyncio.run(orchestrate(world.visits(), rl, [world], world, world))
    assert outcome == Outcome(3, 12, 0, 0)
    report = world.trained[-1].report
    assert report["staleness_max"] in (0.0, 1.0) and report["dropped_share"] == 0.0
    assert 0 <= report["engine_idle_share"] <= 1 and 0 <= report["trainer_idle_share"] <= 1


@pytest.mark.slow
def test_heavy_tails_cost_nothing_at_a_batch_twice_the_slots() -> None:
    """More in `benchmarks/scheduling.py`; what is over the limit is mostly start and end."""
    rl = RLSection(steps=60, groups_per_step=32, group_size=8, slots=128, max_staleness=8)
    world = World(heavy_tailed(0))
    found = measured(world, rl, simulate(world, rl))
    assert found.over_limit < 1.15 and found.staleness <= 8
    assert found.dropped == 0 and found.duration == pytest.approx(1.0)


def test_a_source_that_ends_trains_what_is_left() -> None:
    rl = RLSection(steps=9, groups_per_step=2, group_size=1, slots=4)
    world = World(short(0))
    visits = [visit for visit, _ in zip(world.visits(), range(5), strict=False)]
    outcome = run_virtually(orchestrate(iter(visits), rl, [world], world, world))
    assert outcome.version == 3 and len(trained_visits(world)) == 5
