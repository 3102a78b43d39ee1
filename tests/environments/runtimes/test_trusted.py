"""Programs without walls: bounded in time and output all the same, and never chosen silently."""

import asyncio
from pathlib import Path

import pytest

from environments.runtimes import bwrap
from environments.runtimes.contract import Limits, Ran, Sandbox, Trusted
from environments.runtimes.languages import run_code
from environments.runtimes.table import RUNTIMES, open_runtime, warning_of
from environments.runtimes.trusted import TrustedRuntime
from flywheel.errors import MissingPart


def _run(folder: Path, source: str, **limits: float) -> Ran:
    async def main() -> Ran:
        runtime = open_runtime(Trusted(limits=Limits(**limits)), folder)  # type: ignore[arg-type]
        await runtime.start()
        try:
            return await runtime.exec(["bash", "-c", source])
        finally:
            await runtime.stop()

    return asyncio.run(main())


def test_it_runs_and_its_end_is_told(tmp_path: Path) -> None:
    assert _run(tmp_path, "echo $HOME; exit 4")[:3] == ("error", 4, f"{tmp_path}/work\n")
    assert _run(tmp_path, "kill -9 $$")[:2] == ("killed", None)


def test_what_it_leaves_behind_is_ended(tmp_path: Path) -> None:
    ran = _run(tmp_path, "sleep 600 & echo over")
    assert ran.ok and ran.stdout == "over\n"


def test_time_memory_and_output_are_bounded(tmp_path: Path) -> None:
    assert _run(tmp_path, "sleep 600", wall_s=0.2).reason == "timeout"
    assert _run(tmp_path, "yes", output=1000).reason == "output"
    assert _run(tmp_path, "x=$(yes | head -c 200000000)", memory=64 << 20).reason == "memory"


def test_a_program_that_is_not_there_is_its_own_fault(tmp_path: Path) -> None:
    async def main() -> Ran:
        runtime = TrustedRuntime(Trusted(), tmp_path)
        await runtime.start()
        return await runtime.exec(["not-there"])

    assert asyncio.run(main())[:2] == ("error", 127)


def test_it_says_what_it_is_and_others_do_not() -> None:
    assert "run as you" in str(warning_of(Trusted()))
    assert warning_of(Sandbox()) is None
    assert set(RUNTIMES) == {"sandbox", "container", "trusted"}


def test_it_never_takes_the_place_of_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bwrap.shutil, "which", lambda *words, **more: None)
    bwrap.program.cache_clear()
    with pytest.raises(MissingPart):
        open_runtime(Sandbox(), tmp_path)
    bwrap.program.cache_clear()


def test_source_runs_in_it(tmp_path: Path) -> None:
    async def main() -> Ran:
        runtime = TrustedRuntime(Trusted(), tmp_path)
        await runtime.start()
        files = {"other.py": "VALUE = 5"}
        return await run_code(runtime, "python", "import other; print(other.VALUE)", files=files)

    assert asyncio.run(main()).stdout == "5\n"
