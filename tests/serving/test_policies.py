"""Which weights answer a call: the newest as it begins, the same ones to its end."""

import asyncio

from serving.policies import Policies, Policy, name_of, version_of

FIRST, SECOND = Policy(0, "base", "run-v0"), Policy(1, "run-v1-ab", "run-v1")


def test_a_call_keeps_its_version_and_holds_its_weights() -> None:
    async def go() -> None:
        policies = Policies(FIRST)
        async with policies.use() as held:
            policies.switch(SECOND)
            async with policies.use() as later:
                assert (held, later) == (FIRST, SECOND)
                assert (policies.in_use("base"), policies.in_use(SECOND.model)) == (1, 1)
            assert (policies.in_use("base"), policies.in_use(SECOND.model)) == (1, 0)
        assert policies.in_use("base") == 0

    asyncio.run(go())


def test_halted_no_call_is_under_way_and_those_that_come_wait_for_what_is_put_in_place() -> None:
    async def go() -> list[str]:
        policies, seen = Policies(FIRST), []

        async def call(steps: int) -> None:
            async with policies.use() as policy:
                for _ in range(steps):
                    await asyncio.sleep(0)
                seen.append(policy.name)

        async def replace() -> None:
            async with policies.halted():
                assert seen == ["run-v0"]
                policies.switch(SECOND)

        async with asyncio.TaskGroup() as group:
            for work in (call(9), replace(), call(0)):
                group.create_task(work)
                await asyncio.sleep(0)
            assert policies.halting and not seen
        return seen

    assert asyncio.run(go()) == ["run-v0", "run-v1"]


def test_a_call_that_fails_or_is_cut_lets_go_of_its_weights() -> None:
    async def go() -> None:
        policies = Policies(FIRST)

        async def call() -> None:
            async with policies.use():
                await asyncio.sleep(3600)

        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        assert policies.in_use("base") == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert policies.in_use("base") == 0
        async with policies.halted():
            pass

    asyncio.run(go())


def test_a_name_says_its_version() -> None:
    assert version_of(name_of("support-01JX-v7", 12)) == 12
    assert version_of("base") is None and version_of("support-v") is None
