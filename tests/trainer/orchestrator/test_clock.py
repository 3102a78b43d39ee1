"""Virtual time."""

import asyncio

import pytest

from trainer.orchestrator.clock import LoopClock, run_virtually


def test_time_jumps_to_the_next_timer_and_order_is_kept() -> None:
    seen: list[tuple[str, float]] = []
    clock = LoopClock()

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((name, clock.now()))

    async def main() -> float:
        assert clock.now() == 0.0
        await asyncio.gather(sleeper("late", 3600.0), sleeper("early", 60.5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100.0):
                await asyncio.sleep(1e6)
        return clock.now()

    assert run_virtually(main()) == 3700.0
    assert seen == [("early", 60.5), ("late", 3600.0)]


def test_a_deadlock_is_said_rather_than_waited_for() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits"):
        run_virtually(main())
