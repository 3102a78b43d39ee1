"""What the data gate found: a verdict a gate, each with the expectations that it is made of."""

from pathlib import Path

from flywheel.data_section import Strictness
from flywheel.records import Record
from storage.shifts import Shift


class Check(Record, frozen=True, kw_only=True):
    """One expectation and what became of it."""

    column: str
    wanted: str
    passed: bool
    looked_at: int
    unexpected: int
    found: str = ""
    """Of a measure: its value."""
    examples: tuple[str, ...] = ()


class Looked(Record, frozen=True, kw_only=True):
    """One gate: its expectations, and what it does where they are not met."""

    gate: str
    """data, window, balance, drift or shrink."""
    strictness: Strictness
    checks: tuple[Check, ...] = ()
    failures: tuple[str, ...] = ()
    """One line each: the column, what was wanted, how many rows miss it, the first of them."""
    skipped: str | None = None
    """Why nothing was looked at. None = it was."""

    @property
    def passed(self) -> bool | None:
        """None = not looked at."""
        return None if self.skipped else not self.failures


class GateReport(Record, frozen=True, kw_only=True):
    passed: bool
    """Nothing that blocks is amiss."""
    failures: tuple[str, ...]
    """Of gates that block."""
    warnings: tuple[str, ...]
    """Of gates that only warn."""
    report: Path
    """gate.html, self-contained."""
    gates: tuple[Looked, ...] = ()
    shifts: tuple[Shift, ...] = ()
    """Against the earlier dataset; () = there was none."""
