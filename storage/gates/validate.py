"""Suites are checked by Great Expectations, in a context of its own that writes nothing.

A suite enters; leaves what became of each of its expectations. Invariant: what could not be checked
counts as not met, and says so.
"""

import os
from typing import Any

from flywheel.plain import many
from storage.gates.expected import Suite
from storage.gates.report import Check, Looked

EXAMPLES = 3
"""Rows that a failure names."""


def validate(suites: list[Suite]) -> list[Looked]:
    """In the same order; those that are off, or have nothing to look at, are passed over."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_pandas("dataset")
    return [_looked(source, suite) for suite in suites]


def _looked(source: Any, suite: Suite) -> Looked:
    skipped = "[data_gate] turns it off" if suite.strictness == "off" else suite.skipped
    if skipped:
        return Looked(gate=suite.gate, strictness=suite.strictness, skipped=skipped)
    import great_expectations as gx
    import pandas as pd

    frame = pd.DataFrame(suite.table).astype(suite.types)
    batches = source.add_dataframe_asset(suite.gate).add_batch_definition_whole_dataframe("all")
    for place, each in enumerate(suite.expected):
        each.expectation.meta = {"place": place}
    wanted = gx.ExpectationSuite(
        name=suite.gate, expectations=[each.expectation for each in suite.expected]
    )
    # SUMMARY keeps the first rows amiss; COMPLETE would keep a million of them.
    form: dict[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": EXAMPLES}
    if "row" in suite.table:
        form["unexpected_index_column_names"] = ["row"]
    batch = batches.get_batch({"dataframe": frame})
    results = sorted(batch.validate(wanted, result_format=form).results, key=_place)
    checks = tuple(
        _check(suite, len(frame), each.column, each.wanted, result)
        for each, result in zip(suite.expected, results, strict=True)
    )
    failures = tuple(_failure(check, len(frame)) for check in checks if not check.passed)
    return Looked(gate=suite.gate, strictness=suite.strictness, checks=checks, failures=failures)


def _place(result: Any) -> int:
    return int(result.expectation_config.meta["place"])


def _check(suite: Suite, rows: int, column: str, wanted: str, result: Any) -> Check:
    found = result.result
    indexes = (found.get("partial_unexpected_index_list") or []) if "row" in suite.table else []
    examples = [
        f"row {index['row'][:12]}: {_shown(index[column])}" if column != "row" else index["row"]
        for index in indexes[:EXAMPLES]
    ]
    broken = [
        info["exception_message"]
        for info in _exceptions(result.exception_info)
        if info.get("raised_exception")
    ]
    measured = "row" not in suite.table and column in suite.table
    return Check(
        column=column,
        wanted=wanted,
        passed=bool(result.success),
        looked_at=found.get("element_count") or rows,
        unexpected=found.get("unexpected_count") or 0,
        found=f"{suite.table[column][0]:.3g}" if measured else "",
        examples=tuple(examples + [f"could not be checked: {message}" for message in broken]),
    )


def _exceptions(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [info] if "raised_exception" in info else list(info.values())


def _shown(value: Any) -> str:
    import pandas as pd

    return "nothing" if pd.isna(value) else str(value)


def _failure(check: Check, rows: int) -> str:
    if check.column == "rows" and not check.found:
        return (
            f"nothing to learn from: {many(rows, 'row')}, {check.wanted} wanted: more "
            "conversations with feedback that says what was right would bring some"
        )
    if check.found:
        return f"{check.column}: wanted {check.wanted}, found {check.found}"
    missed = f"{check.unexpected} of {check.looked_at} rows miss it"
    examples = f" ({'; '.join(check.examples)})" if check.examples else ""
    remedy = _REMEDIES.get(check.column, "")
    return f"{check.column}: wanted {check.wanted}, {missed}{examples}{remedy and ': ' + remedy}"


_REMEDIES = {
    "row": "the rule exact_duplicates under [curate] keeps each row once",
    "reward": "the rule min_reward under [curate] leaves ungraded answers out",
    "tokens": "the rule length under [curate] leaves long rows out",
    "finish_reason": "the rule fidelity under [curate] leaves answers out that were cut",
}
"""What a person can do about rows that miss an expectation on the column."""
