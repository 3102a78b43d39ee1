"""Real sandboxes in `tmp_path`; where bubblewrap is missing, or may not work, the tests skip."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from environments.runtimes.contract import Limits, Ran, RuntimeFailure, Sandbox
from environments.runtimes.sandbox import SandboxRuntime
from flywheel.errors import MissingPart

MIB = 1 << 20
GENEROUS = Limits(wall_s=60, cpu_s=30)


class Box:
    """A runtime, driven from a plain test."""

    def __init__(self, runtime: SandboxRuntime) -> None:
        self.runtime = runtime
        asyncio.run(runtime.start())

    def run(self, *command: str, stdin: str = "", door: str | None = None, **limits: Any) -> Ran:
        bounds = self.runtime.limits.model_copy(update=limits)
        return asyncio.run(self.runtime.exec(command, stdin=stdin, limits=bounds, door=door))

    def python(self, source: str, **limits: Any) -> Ran:
        return self.run("python3", "-c", source, **limits)

    def bash(self, source: str, **limits: Any) -> Ran:
        return self.run("bash", "-c", source, **limits)

    def left(self) -> list[str]:
        """Processes of this sandbox's user; where we are no root, of its workspace."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and self._ours(folder):
                    found.append((folder / "cmdline").read_text())
        return found

    def _ours(self, process: Path) -> bool:
        if self.runtime.owner is not None:
            return process.stat().st_uid == self.runtime.owner
        return os.readlink(process / "cwd").startswith(str(self.runtime.work))


@cache
def why_none() -> str | None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        try:
            box = Box(SandboxRuntime(Sandbox(), Path(folder)))
            ran = box.run("true")
            asyncio.run(box.runtime.stop())
        except (MissingPart, RuntimeFailure) as error:
            return str(error)
    return None if ran.ok else ran.stderr


@pytest.fixture
def open_box(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    """Opens sandboxes; all are stopped in the end."""
    reason = why_none()
    if reason is not None:
        pytest.skip(reason)
    opened: list[Box] = []

    def make(*, readable: Sequence[Path] = (), workspace: int | None = None, **how: Any) -> Box:
        limits = GENEROUS.model_copy(update={"workspace": workspace} if workspace else {})
        config = Sandbox(limits=limits, readable=tuple(readable))
        opened.append(Box(SandboxRuntime(config, tmp_path / f"box{len(opened)}", **how)))
        return opened[-1]

    yield make
    for box in opened:
        asyncio.run(box.runtime.stop())


@pytest.fixture
def box(open_box: Callable[..., Box]) -> Box:
    return open_box()


@pytest.fixture(params=["grouped", "watched"])
def either(request: pytest.FixtureRequest, open_box: Callable[..., Box]) -> Box:
    """Memory bounded by the kernel, where it does that here, and by the watchdog."""
    return open_box(grouped=request.param == "grouped")
