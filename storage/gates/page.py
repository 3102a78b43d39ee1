"""The data gate's page: one HTML file that stands alone, without the answers themselves.

A report's parts enter; leaves the page's text. Everything shown is escaped.
"""

from pathlib import Path

from storage.gates.report import Looked
from storage.shifts import Shift

SAYS = {
    "data": "Schema, ranges and nulls",
    "window": "Lengths against the model's window",
    "balance": "Slices and kinds of answers",
    "drift": "Distributions against the last accepted dataset",
    "shrink": "Rows left, of the last accepted dataset's",
}


def page(gates: list[Looked], shifts: tuple[Shift, ...], rows: int, earlier: str | None) -> str:
    from jinja2 import Environment

    source = (Path(__file__).parent / "page.html.jinja").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        source
    )
    failures = [line for one in gates if one.strictness == "block" for line in one.failures]
    warnings = [line for one in gates if one.strictness == "warn" for line in one.failures]
    return template.render(
        gates=gates, shifts=shifts, rows=rows, earlier=earlier, says=SAYS,
        failures=failures, warnings=warnings, checks=sum(len(one.checks) for one in gates),
        amiss={check.column for one in gates if one.gate == "drift" for check in one.checks
               if not check.passed},
    )  # fmt: skip
