"""The data gate's page: one HTML file that stands alone, without the answers themselves.

A report enters; leaves the page's text.
"""

from pathlib import Path

from storage.gates.report import GateReport
from storage.pages import page_of

SAYS = {
    "data": "Schema, ranges and nulls",
    "window": "Lengths against the model's window",
    "balance": "Slices and kinds of answers",
    "drift": "Distributions against the last accepted dataset",
    "shrink": "Rows left, of the last accepted dataset's",
}


def page(report: GateReport, rows: int, earlier: str | None) -> str:
    """
    Args:
        earlier: the dataset that it was compared with. None = with none.
    """
    drift = (one for one in report.gates if one.gate == "drift")
    return page_of(
        Path(__file__).with_name("page.html.jinja"),
        gates=report.gates, shifts=report.shifts, rows=rows, earlier=earlier, says=SAYS,
        failures=report.failures, warnings=report.warnings,
        checks=sum(len(one.checks) for one in report.gates),
        amiss={check.column for one in drift for check in one.checks if not check.passed},
    )  # fmt: skip
