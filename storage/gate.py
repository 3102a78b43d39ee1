"""The data gate: the last look at a dataset before it is trained on, by Great Expectations.

Rows go in; whether they pass, why not in words a person can act on, and one HTML file to keep come
out. Only narrow columns are looked at, once, and nothing is written outside the given folder.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel import durable
from flywheel.records import Record
from flywheel.rows import GOOD, TrainingRow
from storage.rules.fidelity import FINISHED, WRITTEN
from storage.tokens_of import count_tokens

EXAMPLES = 3
"""Rows that a failure names."""
ROUNDING = 1e-5
"""How far above 0 a float32 log-softmax may end up."""


class Check(Record, frozen=True, kw_only=True):
    """One expectation and what became of it."""

    column: str
    wanted: str
    passed: bool
    looked_at: int
    unexpected: int
    examples: tuple[str, ...] = ()


class GateReport(Record, frozen=True, kw_only=True):
    passed: bool
    failures: tuple[str, ...]
    """One line each: the column, what was wanted, how many rows miss it, the first of them."""
    report: Path
    """gate.html, self-contained."""
    checks: tuple[Check, ...] = ()


def data_gate(
    rows: Sequence[TrainingRow],
    folder: Path,
    *,
    min_rows: int,
    max_tokens: int,
    reward_range: tuple[float, float] = (0.0, 1.0),
    answered: bool = True,
) -> GateReport:
    """Validates `rows` and writes `folder`/gate.html.

    `max_tokens` is of prompt and answer together. Rows that people wrote need neither a reward nor
    a finish reason; problems that are yet to be answered (`answered` false) no answer either.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    expected = _expectations(min_rows, max_tokens, reward_range)
    if not answered:
        expected = [one for one in expected if one[0] in _OF_PROBLEMS]
    checks = _validate(_frame(rows), expected)
    failures = tuple(_failure(check, len(rows), min_rows) for check in checks if not check.passed)
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "gate.html"
    durable.write(report, _page(checks, failures, len(rows)).encode())
    return GateReport(passed=not failures, failures=failures, report=report, checks=tuple(checks))


def _frame(rows: Sequence[TrainingRow]) -> Any:
    """The narrow columns, as the one kind of table that Great Expectations takes here."""
    import pandas as pd

    narrow = [_narrow(row) for row in rows]
    columns = {name: [each[name] for each in narrow] for name in _COLUMNS}
    return pd.DataFrame(columns).astype(_COLUMNS)


_COLUMNS = {
    "row": "string", "origin": "string", "reward": "float64", "tokens": "Int64",
    "answer_tokens": "Int64", "answer_characters": "Int64", "finish_reason": "string",
    "slice": "string", "logprobs": "Int64", "highest_logprob": "float64",
}  # fmt: skip


def _narrow(row: TrainingRow) -> dict[str, Any]:
    prompt, answer, _ = count_tokens(row)
    logprobs = row.tokens.logprobs if row.tokens else None
    numbers = logprobs is not None and all(value == value for value in logprobs)
    said = row.completion.text.strip() or "".join(
        call.name + call.arguments for call in row.completion.tool_calls
    )
    return {
        "row": row.id,
        "origin": row.origin,
        # A label is a reward, whether or not a number was given as well.
        "reward": row.reward if row.label is None else float(row.label in GOOD),
        "tokens": prompt + answer,
        "answer_tokens": answer,
        "answer_characters": len(said),
        "finish_reason": row.finish_reason,
        "slice": row.slice or None,
        "logprobs": None if logprobs is None else len(logprobs),
        # A NaN counts as higher than any allowed value; a null would be passed over.
        "highest_logprob": (max(logprobs) if numbers else float("inf")) if logprobs else None,
    }


_OF_PROBLEMS = ("rows", "row", "tokens", "slice")


def _expectations(
    min_rows: int, max_tokens: int, reward_range: tuple[float, float]
) -> list[tuple[str, str, Any]]:
    """Column, what is wanted in words, and the expectation."""
    from great_expectations import expectations
    from great_expectations.expectations.row_conditions import Column

    gxe: Any = expectations  # its names are not exported in the way that mypy asks for
    sampled = Column("origin").is_not_in(list(WRITTEN))
    low, high = reward_range
    endings = [*FINISHED]
    between, not_null = gxe.ExpectColumnValuesToBeBetween, gxe.ExpectColumnValuesToNotBeNull
    return [
        ("rows", f"at least {min_rows}", gxe.ExpectTableRowCountToBeBetween(min_value=min_rows)),
        ("row", "no id twice", gxe.ExpectColumnValuesToBeUnique(column="row")),
        ("reward", "known for every answer that was sampled",
         not_null(column="reward", row_condition=sampled)),
        ("reward", f"from {low:g} to {high:g}",
         between(column="reward", min_value=low, max_value=high)),
        ("tokens", f"prompt and answer at most {max_tokens}",
         between(column="tokens", min_value=1, max_value=max_tokens)),
        ("answer_tokens", "at least 1", between(column="answer_tokens", min_value=1)),
        ("answer_characters", "not empty", between(column="answer_characters", min_value=1)),
        ("finish_reason", "known for every answer that was sampled",
         not_null(column="finish_reason", row_condition=sampled)),
        ("finish_reason", f"one of {', '.join(endings)}",
         gxe.ExpectColumnValuesToBeInSet(column="finish_reason", value_set=endings)),
        ("slice", "set", not_null(column="slice")),
        ("logprobs", "as many as the answer has tokens",
         gxe.ExpectColumnPairValuesToBeEqual(
             column_A="logprobs", column_B="answer_tokens",
             ignore_row_if="either_value_is_missing")),
        ("highest_logprob", "at most 0", between(column="highest_logprob", max_value=ROUNDING)),
    ]  # fmt: skip


def _validate(frame: Any, expected: list[tuple[str, str, Any]]) -> list[Check]:
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    batches = context.data_sources.add_pandas("dataset").add_dataframe_asset("rows")
    batch = batches.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    for place, (_, _, expectation) in enumerate(expected):
        expectation.meta = {"place": place}
    suite = gx.ExpectationSuite(name="dataset", expectations=[each[2] for each in expected])
    form = {"result_format": "COMPLETE", "unexpected_index_column_names": ["row"]}
    results = batch.validate(suite, result_format=form).results
    results.sort(key=_place)
    return [_check(*each[:2], result) for each, result in zip(expected, results, strict=True)]


def _place(result: Any) -> int:
    return int(result.expectation_config.meta["place"])


def _check(column: str, wanted: str, result: Any) -> Check:
    found = result.result
    indexes = found.get("unexpected_index_list") or []
    examples = [
        f"row {index['row'][:12]}: {_shown(index[column])}" if column != "row" else index["row"]
        for index in indexes[:EXAMPLES]
    ]
    broken = [
        info["exception_message"]
        for info in _exceptions(result.exception_info)
        if info.get("raised_exception")
    ]
    return Check(
        column=column,
        wanted=wanted,
        passed=bool(result.success),
        looked_at=found.get("element_count") or found.get("observed_value") or 0,
        unexpected=found.get("unexpected_count") or 0,
        examples=tuple(examples + [f"could not be checked: {message}" for message in broken]),
    )


def _exceptions(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [info] if "raised_exception" in info else list(info.values())


def _shown(value: Any) -> str:
    import pandas as pd

    return "nothing" if pd.isna(value) else str(value)


def _failure(check: Check, rows: int, min_rows: int) -> str:
    if check.column == "rows":
        return (
            f"nothing to learn from: {rows} rows, at least {min_rows} wanted: more conversations "
            "with feedback that says what was right would bring some"
        )
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


def _page(checks: Sequence[Check], failures: Sequence[str], rows: int) -> str:
    from jinja2 import Environment

    source = (Path(__file__).parent / "gate.html.jinja").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        source
    )
    return template.render(checks=checks, failures=failures, rows=rows)
