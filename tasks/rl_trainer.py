"""The trainer's process beside a run that samples: started, watched, started again when it dies.

Enter a job; leave versions of weights in the run's folder, as `trainer.spool` has them. Invariant:
the process never outlives this one, and what it says as it fails is told.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Self

from flywheel import children
from flywheel.errors import FlywheelError, MissingPart, Refused
from flywheel.progress import report

LOOK_S = 0.05
"""How often a version is looked for, and the process after."""
AGAIN = 3
"""Times in a row that a process which was killed is started again without a step between."""
_TOLD = 12
"""Lines of its log that an error has."""


class TrainerProcess:
    """`async with` it: it runs within."""

    def __init__(self, job: Path) -> None:
        self.job, self.log = job, job.parent / "trainer.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._deaths = 0

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
        if self._child is not None:
            await asyncio.to_thread(self._child.wait)
            if self._child.stdin is not None:
                self._child.stdin.close()

    async def until(self, done: Callable[[], bool]) -> None:
        """Waits until `done`, with a living trainer.

        Raises:
            FlywheelError: it stopped; says what its log says.
        """
        while not done():
            if not self._alive() and not done():
                self._again()
            await asyncio.sleep(LOOK_S)
        self._deaths = 0

    async def ended(self) -> None:
        """Waits for its end, which must be a good one.

        Raises:
            FlywheelError: as `until`.
        """
        assert self._child is not None
        await self.until(lambda: self._child is not None and self._child.poll() == 0)

    def _start(self) -> None:
        self._child = children.start("trainer", [str(self.job)], log=self.log)

    def _alive(self) -> bool:
        assert self._child is not None
        return self._child.poll() is None

    def _again(self) -> None:
        """A process that a signal ended goes on from its checkpoint; one that gave up does not."""
        assert self._child is not None
        code = self._child.returncode
        self._deaths += 1
        if code >= 0 or self._deaths > AGAIN:
            raise fault_of(code)(
                f"training of run {self.job.parent.name} stopped ({code}):\n{self._said()}"
            )
        report("training", 0, None, f"the trainer was killed (signal {-code}); started again")
        if self._child.stdin is not None:
            self._child.stdin.close()
        self._start()

    def _said(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TOLD:])
        return "it said nothing"


def fault_of(code: int) -> type[FlywheelError]:
    """Of a trainer that gave up: what is certain to come out the same is not tried again."""
    kinds: tuple[type[FlywheelError], ...] = (MissingPart, Refused)
    return next((kind for kind in kinds if kind.exit_code == code), FlywheelError)
