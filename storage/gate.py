"""The data gate: the last look at a dataset before it is trained on, by Great Expectations.

Narrow columns enter, and those of the last accepted dataset; leave a verdict a gate in words that a
person can act on, and one HTML file to keep. Nothing is written outside the given folder.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from flywheel import durable
from storage.gates import expected
from storage.gates.earlier import Earlier, keep
from storage.gates.expected import Wanted
from storage.gates.page import page
from storage.gates.report import GateReport
from storage.gates.validate import validate
from storage.shifts import shifts

if TYPE_CHECKING:
    import polars as pl


def data_gate(
    frame: "pl.DataFrame", folder: Path, wanted: Wanted, earlier: Earlier | None = None
) -> GateReport:
    """Validates the rows of `frame` and writes `folder`/gate.html.

    Args:
        earlier: what distributions and counts are compared with; None = there is nothing yet.
    """
    name = earlier.dataset[:8] if earlier else None
    found = shifts(earlier.frame, frame) if earlier else ()
    gates = validate([
        expected.rows_suite(frame, wanted),
        expected.window_suite(frame, wanted),
        expected.balance_suite(frame, wanted),
        expected.drift_suite(found, name, wanted),
        expected.shrink_suite(frame.height, earlier and earlier.frame.height, name, wanted),
    ])  # fmt: skip
    failures = tuple(line for one in gates if one.strictness == "block" for line in one.failures)
    warnings = tuple(line for one in gates if one.strictness == "warn" for line in one.failures)
    report = GateReport(
        passed=not failures, failures=failures, warnings=warnings, report=folder / "gate.html",
        gates=tuple(gates), shifts=found,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    durable.write(report.report, page(report, frame.height, name).encode())
    keep(folder, frame)
    return report
