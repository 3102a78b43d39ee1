"""What is expected of a dataset, as suites of Great Expectations: one a gate.

Narrow columns enter, and measures of them; leave tables with the expectations on each. Whatever is
measured over all rows (a share, a drift) is a table of one row, a column each.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.data_section import DataGateSection, Strictness
from flywheel.rows import GOOD
from storage.rules.fidelity import FINISHED, WRITTEN
from storage.shifts import Shift

if TYPE_CHECKING:
    import polars as pl

ROUNDING = 1e-5
"""How far above 0 a float32 log-softmax may end up."""
HEAVIEST = 1000.0
"""Weight of one row, of which most have 1."""
NOTHING_EARLIER = "no earlier dataset of the project was accepted"


class Wanted(NamedTuple):
    """What the project asks of its datasets."""

    min_rows: int
    max_tokens: int
    """The model's window: of prompt and answer together."""
    section: DataGateSection = DataGateSection()
    reward_range: tuple[float, float] = (0.0, 1.0)
    answered: bool = True
    """False = the rows are problems that are yet to be answered."""
    both: bool = False
    """Whether good and bad answers are learnt from, rather than good ones alone."""
    slices: tuple[str, ...] = ()
    """Those that there are problems of."""


class Expected(NamedTuple):
    column: str
    wanted: str
    """In words."""
    expectation: Any


class Suite(NamedTuple):
    gate: str
    strictness: Strictness
    table: dict[str, Any]
    """Column -> values of a pandas frame; "row" names its rows in a failure."""
    types: dict[str, str]
    expected: list[Expected]
    skipped: str | None = None


_ROWS = {
    "row": "string", "origin": "string", "reward": "float64", "tokens": "Int64",
    "answer_tokens": "Int64", "answer_characters": "Int64", "finish_reason": "string",
    "slice": "string", "logprobs": "Int64", "highest_logprob": "float64", "weight": "float64",
}  # fmt: skip


def rows_suite(frame: "pl.DataFrame", wanted: Wanted) -> Suite:
    """Schema, ranges and nulls: of every dataset, whatever the project says."""
    gxe = _expectations()
    between, not_null = gxe.ExpectColumnValuesToBeBetween, gxe.ExpectColumnValuesToNotBeNull
    low, high = wanted.reward_range
    sampled = _sampled()
    posed = [
        Expected("rows", f"at least {wanted.min_rows}",
                 gxe.ExpectTableRowCountToBeBetween(min_value=wanted.min_rows)),
        Expected("columns", f"all {len(_ROWS)} that gates look at",
                 gxe.ExpectTableColumnsToMatchSet(column_set=[*_ROWS])),
        Expected("row", "no id twice", gxe.ExpectColumnValuesToBeUnique(column="row")),
        Expected("slice", "set", not_null(column="slice")),
        Expected("weight", f"above 0, at most {HEAVIEST:g}",
                 between(column="weight", min_value=0, strict_min=True, max_value=HEAVIEST)),
    ]  # fmt: skip
    answers = [
        Expected("reward", "known for every answer that was sampled",
                 not_null(column="reward", row_condition=sampled)),
        Expected("reward", f"from {low:g} to {high:g}",
                 between(column="reward", min_value=low, max_value=high)),
        Expected("answer_tokens", "at least 1", between(column="answer_tokens", min_value=1)),
        Expected("answer_characters", "not empty",
                 between(column="answer_characters", min_value=1)),
        Expected("finish_reason", "known for every answer that was sampled",
                 not_null(column="finish_reason", row_condition=sampled)),
        Expected("finish_reason", f"one of {', '.join(FINISHED)}",
                 gxe.ExpectColumnValuesToBeInSet(
                     column="finish_reason", value_set=[*FINISHED])),
        Expected("logprobs", "as many as the answer has tokens",
                 gxe.ExpectColumnPairValuesToBeEqual(
                     column_A="logprobs", column_B="answer_tokens",
                     ignore_row_if="either_value_is_missing")),
        Expected("highest_logprob", "at most 0",
                 between(column="highest_logprob", max_value=ROUNDING)),
    ]  # fmt: skip
    expected = [*posed, *answers] if wanted.answered else posed
    return Suite("data", "block", _rows(frame, *_ROWS), _ROWS, expected)


def window_suite(frame: "pl.DataFrame", wanted: Wanted) -> Suite:
    """Token lengths against the model's window."""
    between = _expectations().ExpectColumnValuesToBeBetween
    about = Expected(
        "tokens",
        f"prompt and answer at most {wanted.max_tokens}",
        between(column="tokens", min_value=1, max_value=wanted.max_tokens),
    )
    types = {name: _ROWS[name] for name in ("row", "tokens")}
    return Suite("window", wanted.section.window, _rows(frame, *types), types, [about])


class Measure(NamedTuple):
    """Of all rows together."""

    value: float
    wanted: str
    least: float | None = None
    most: float | None = None


def balance_suite(frame: "pl.DataFrame", wanted: Wanted) -> Suite:
    """Whether one slice, or one kind of answer, is most of it."""
    import polars as pl

    most = wanted.section.balance_most
    measures: dict[str, Measure] = {}
    enough = frame.height >= max(wanted.min_rows, 1)
    if enough and len({*wanted.slices, *frame["slice"].drop_nulls()}) > 1:
        name, share = _largest(frame["slice"])
        told = f"no slice over {most:.0%}; {name} is the largest"
        measures["slice"] = Measure(share, told, most=most)
    if enough and wanted.both:
        good = pl.when(pl.col("label").is_null()).then(pl.col("reward") >= 0.5).otherwise(
            pl.col("label").is_in(GOOD)
        )  # fmt: skip
        kinds = frame.select(kind=pl.when(good).then(pl.lit("good")).otherwise(pl.lit("bad")))
        name, share = _largest(kinds["kind"])
        told = f"good and bad ones, neither over {most:.0%}; most are {name}"
        measures["answers"] = Measure(share, told, most=most)
    user, share = _largest(frame["user"]) if enough else ("", 0.0)
    if enough and frame["user"].is_not_null().any():
        told = f"no user over {most:.0%}"
        measures["user"] = Measure(share if user != "unknown" else 0.0, told, most=most)
    alone = "one slice, and good answers alone: nothing to balance"
    skipped = None if measures else alone if enough else "too few rows to say"
    return _measured("balance", wanted.section.balance, measures, skipped)


def drift_suite(found: tuple[Shift, ...], earlier: str | None, wanted: Wanted) -> Suite:
    """Distributions against the last accepted dataset, by their stability index."""
    bound = wanted.section.drift_psi
    measures: dict[str, Measure] = {}
    for one in found:
        if one.psi is not None:
            limit = max(bound, one.chance or 0.0)
            by_chance = ", which so few rows reach by chance" * (limit > bound)
            told = f"a stability index under {limit:.2f}{by_chance}, against dataset {earlier}"
            measures[one.column] = Measure(one.psi, told, most=limit)
    skipped = None if measures else NOTHING_EARLIER
    return _measured("drift", wanted.section.drift, measures, skipped)


def shrink_suite(rows: int, before: int | None, earlier: str | None, wanted: Wanted) -> Suite:
    """Whether far fewer rows are left than the last accepted dataset had."""
    least = wanted.section.shrink_to
    measures: dict[str, Measure] = {}
    if before:
        told = f"at least {least:.0%} of the {before} rows of dataset {earlier}"
        measures["rows"] = Measure(rows / before, told, least=least)
    skipped = None if measures else NOTHING_EARLIER
    return _measured("shrink", wanted.section.shrink, measures, skipped)


def _measured(
    gate: str, strictness: Strictness, measures: dict[str, Measure], skipped: str | None
) -> Suite:
    between = _expectations().ExpectColumnValuesToBeBetween
    expected = [
        Expected(name, one.wanted, between(column=name, min_value=one.least, max_value=one.most))
        for name, one in measures.items()
    ]
    table = {name: [one.value] for name, one in measures.items()}
    return Suite(gate, strictness, table, dict.fromkeys(table, "float64"), expected, skipped)


def _rows(frame: "pl.DataFrame", *names: str) -> dict[str, Any]:
    """These columns of `_ROWS`, as pandas has them."""
    import polars as pl

    made = {
        "row": pl.col("row_id"),
        "tokens": pl.col("prompt_tokens") + pl.col("answer_tokens"),
        "slice": pl.col("slice").replace("", None),
        # Of pandas NaN would be nothing, which is no number out of a range.
        "reward": pl.col("reward").fill_nan(float("inf")),
        "weight": pl.col("weight").fill_nan(float("inf")),
    }
    rows = frame.select(made.get(name, pl.col(name)).alias(name) for name in names)
    return {name: rows[name].to_pandas() for name in names}


def _largest(values: "pl.Series") -> tuple[str, float]:
    counts = values.fill_null("unknown").value_counts(name="rows").sort("rows", values.name)
    name, rows = counts.row(-1)
    return str(name), rows / values.len()


def _sampled() -> Any:
    from great_expectations.expectations.row_conditions import Column

    return Column("origin").is_not_in(list(WRITTEN))


def _expectations() -> Any:
    from great_expectations import expectations

    return expectations  # its names are not exported in the way that mypy asks for
