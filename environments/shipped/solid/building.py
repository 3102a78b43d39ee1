"""A CAD program built and measured, from outside.

Enter: the program's text. Leaves: what the kernel says of its shape. Invariant: the shape is
measured in a process that starts when all of the program's have ended, so what a program prints,
patches or forks off changes no figure.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from environments.runtimes.contract import MIB, Limits, Runtime

LIMITS = Limits(wall_s=90.0, cpu_s=45.0, memory=1536 * MIB, processes=48, file=32 * MIB)
_HERE = Path(__file__).parent
_TOLD = 2000


class Built(NamedTuple):
    error: str | None
    """Why there is nothing to measure; None = there is."""
    solids: int = 0
    watertight: bool = False
    volume: float = 0.0
    """Cubic millimetres."""
    holes: float = 0.0
    """That go through it."""
    size: Sequence[float] = (0.0, 0.0, 0.0)
    """Of the box around it, along X, Y, Z."""
    picture: str | None = None
    """A PNG in base64."""

    def near(self, wanted: Mapping[str, Any], part: str) -> bool:
        """Whether one figure, "volume", "holes" or "size", is the wanted one within rounding."""
        got, truth = getattr(self, part), wanted[part]
        pairs = [(got, truth)] if part != "size" else list(zip(got, truth, strict=True))
        return self.error is None and all(abs(a - b) <= 1e-3 * max(1.0, abs(b)) for a, b in pairs)

    def right(self, wanted: Mapping[str, Any]) -> bool:
        whole = self.watertight and self.solids == 1
        return whole and all(self.near(wanted, part) for part in ("volume", "holes", "size"))


async def build(runtime: Runtime, program: str, packages: Path, *, picture: int = 0) -> Built:
    """
    Args:
        picture: its width; 0 = none.

    Raises:
        RuntimeFailure: the machine's fault.
    """
    await runtime.write("result.brep", b"")  # no answer before it counts
    command = ["python3", "-ISc", _text("builder"), str(packages)]
    ran = await runtime.exec(command, stdin=program, limits=LIMITS)
    if not ran.ok:
        why = f"the program was ended: {ran.reason}\n" if ran.reason != "error" else ""
        return Built(why + ran.stderr.strip()[-_TOLD:])
    command = ["python3", "-ISc", _text("measurer"), str(packages), str(picture)]
    seen = await runtime.exec(command, limits=LIMITS)
    try:
        said = json.loads(seen.stdout) if seen.ok else None
    except ValueError:
        said = None
    if said is None:
        lines = seen.stderr.strip().splitlines() or [seen.reason]
        return Built(f"the shape could not be measured: {lines[-1][:300]}")
    return Built(None, **said)


@cache
def _text(name: str) -> str:
    return (_HERE / f"{name}.py").read_text(encoding="utf-8")
