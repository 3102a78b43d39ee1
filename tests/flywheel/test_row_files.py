from pathlib import Path

import pytest

from flywheel.errors import CorruptFile
from flywheel.records import Tokens, say
from flywheel.row_files import read_batches, read_rows, write_rows
from flywheel.rows import TrainingRow

ROW = TrainingRow(
    trace_id="t",
    span_id="s",
    messages=(say("user", "hi \u2603"),),
    completion=say("assistant", ""),
    tokens=Tokens(
        prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.125,), policy_versions=("p-v1",)
    ),
    reward=0.0,
)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        ROW,
        TrainingRow(trace_id="u", span_id="s", messages=(), completion=say("assistant", "x")),
    ]
    write_rows(tmp_path / "rows.parquet", rows)
    assert read_rows(tmp_path / "rows.parquet") == rows
    assert list(read_batches(tmp_path / "rows.parquet", 1)) == [[row] for row in rows]


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    write_rows(tmp_path / "a", [ROW])
    write_rows(tmp_path / "b", [ROW])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_that_is_not_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1nonsense")
    with pytest.raises(CorruptFile, match=r"rows\.parquet"):
        read_rows(tmp_path / "rows.parquet")
    with pytest.raises(CorruptFile, match=r"rows\.parquet"):
        list(read_batches(tmp_path / "rows.parquet"))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("weight", None), ("reward", "much"), ("label", "great"), ("prompt_ids", None),
        ("prompt_ids", [1.5]), ("completion_ids", [None]), ("messages", None), ("origin", None),
        ("template_digest", 7), ("policy_versions", [None]),
    ],
)  # fmt: skip
def test_a_column_of_another_kind_is_named_and_not_trained_on(
    tmp_path: Path, column: str, value: object
) -> None:
    import polars as pl

    path = tmp_path / "rows.parquet"
    write_rows(path, [ROW])
    pl.read_parquet(path).with_columns(pl.Series(column, [value])).write_parquet(path)
    with pytest.raises(CorruptFile, match="not a dataset's rows file"):
        read_rows(path)
