"""The event loop that all runs of a process share."""

import threading

import pytest

from tasks.rl_loop import Shared, shared


def test_it_lives_from_the_first_run_to_the_last() -> None:
    async def four() -> int:
        return 4

    with shared() as one, shared() as other:
        assert one is other and one.run(four()) == 4
        with pytest.raises(KeyError, match="gone"):
            one.run(failing())
    with shared() as later:
        assert later is not one


async def failing() -> None:
    raise KeyError("gone")


def test_code_that_blocks_it_holds_up_nobody_who_ends() -> None:
    blocked, free = threading.Event(), threading.Event()

    async def blocking() -> None:
        blocked.set()
        free.wait()

    loop = Shared(parting_s=0.05)
    playing = threading.Thread(target=loop.run, args=(blocking(),))
    playing.start()
    blocked.wait()
    loop.close()
    free.set()
    playing.join()
