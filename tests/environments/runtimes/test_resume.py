"""A long task goes on after its process was killed between two steps."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments.runtimes.conftest import why_none

TASK = """
import asyncio, os, pathlib, signal, sys
from environments.runtimes.contract import Sandbox
from environments.runtimes.table import open_runtime

async def main(folder, die_at):
    runtime = open_runtime(Sandbox(), folder)
    await runtime.start()
    kept = folder / "snapshot.tar"
    if kept.exists():
        await runtime.restore(kept)
    for step in range(5):
        seen = await runtime.exec(["bash", "-c", "cat steps 2>/dev/null | wc -l"])
        if int(seen.stdout) > step:
            continue
        ran = await runtime.exec(["bash", "-c", f"echo {step} >> steps"])
        assert ran.ok, ran
        if step == die_at:
            await runtime.exec(["bash", "-c", "echo torn >> steps"])
            os.kill(os.getpid(), signal.SIGKILL)
        await runtime.snapshot()
    print((await runtime.read("steps")).decode().split())
    await runtime.stop()

asyncio.run(main(pathlib.Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.slow
def test_a_task_goes_on_from_its_last_snapshot(tmp_path: Path) -> None:
    if (reason := why_none()) is not None:
        pytest.skip(reason)

    def attempt(die_at: int) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-c", TASK, str(tmp_path / "task"), str(die_at)]
        return subprocess.run(words, capture_output=True, text=True)

    for die_at in (2, 3):
        assert attempt(die_at).returncode == -signal.SIGKILL
    last = attempt(-1)
    assert last.stdout.strip() == "['0', '1', '2', '3', '4']", last.stderr
