"""The pool: never more at once than said; the machine's faults are tried again, programs' not."""

import asyncio
from pathlib import Path

import pytest

from environments.runtimes import pool as pools
from environments.runtimes.contract import Runtime, RuntimeFailure, Trusted
from environments.runtimes.pool import Pool
from environments.runtimes.trusted import TrustedRuntime


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_FIRST_PAUSE_S", 0.001)


def test_no_more_run_at_once_than_said_and_the_queue_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        pool = Pool(Trusted(), tmp_path, at_once=2)
        most = 0

        async def one(number: int) -> None:
            nonlocal most
            async with pool.runtime() as runtime:
                most = max(most, pool.counts.running)
                await runtime.write("mine", str(number))
                await asyncio.sleep(0.01)
                assert await runtime.read("mine") == str(number).encode()

        await asyncio.gather(*map(one, range(6)))
        assert most == 2
        assert pool.metrics() == {
            **{"waiting": 0, "deepest": 4, "running": 0, "started": 6, "failed": 0, "retried": 0}
        }

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_the_machine_is_tried_again_in_a_fresh_runtime(tmp_path: Path) -> None:
    folders: list[Path] = []

    async def work(runtime: Runtime) -> str:
        folders.append(runtime.folder)
        if len(folders) < 3:
            raise RuntimeFailure("gone")
        return "done"

    async def main() -> None:
        pool = Pool(Trusted(), tmp_path)
        assert await pool.run(work) == "done"
        assert (pool.counts.failed, pool.counts.retried, pool.counts.running) == (2, 2, 0)

    asyncio.run(main())
    assert len(set(folders)) == 3 and list(tmp_path.iterdir()) == []


def test_tries_end(tmp_path: Path) -> None:
    async def work(runtime: Runtime) -> None:
        raise RuntimeFailure("gone")

    pool = Pool(Trusted(), tmp_path, tries=3)
    with pytest.raises(RuntimeFailure):
        asyncio.run(pool.run(work))
    assert pool.counts.started == 3


def test_what_is_no_fault_of_the_machine_is_not_tried_again(tmp_path: Path) -> None:
    async def work(runtime: Runtime) -> None:
        raise ValueError("a bug")

    pool = Pool(Trusted(), tmp_path)
    with pytest.raises(ValueError):
        asyncio.run(pool.run(work))
    assert (pool.counts.started, pool.counts.failed) == (1, 0)


def test_a_sandbox_that_does_not_start_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Path] = []
    real = TrustedRuntime.start

    async def sometimes(self: TrustedRuntime) -> None:
        starts.append(self.folder)
        if len(starts) == 1:
            raise RuntimeFailure("no room")
        await real(self)

    monkeypatch.setattr(TrustedRuntime, "start", sometimes)

    async def main() -> None:
        async with Pool(Trusted(), tmp_path).runtime() as runtime:
            assert (await runtime.exec(["true"])).ok

    asyncio.run(main())
    assert len(starts) == 2 and list(tmp_path.iterdir()) == []


def test_who_waits_and_gives_up_takes_no_place(tmp_path: Path) -> None:
    async def main() -> None:
        pool = Pool(Trusted(), tmp_path, at_once=1)
        async with pool.runtime():
            waiting = asyncio.ensure_future(pool.run(lambda runtime: asyncio.sleep(0)))
            await asyncio.sleep(0.01)
            assert pool.counts.waiting == 1
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert pool.counts.waiting == 0
        async with pool.runtime():
            assert pool.counts.running == 1

    asyncio.run(main())
