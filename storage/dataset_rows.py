"""Looking into datasets without reading them whole: pages of rows, dropped examples, differences.

Enter datasets; leave bounded lists of narrow rows. The files are read by a DuckDB of their own in
memory, so the store's database is not opened and no commit waits.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import CorruptFile, UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset
from flywheel.progress import report
from flywheel.records import Message, Record
from flywheel.row_files import read_batches
from storage.curate import Dropped
from storage.rows import named

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection

EXAMPLES = 100
"""Rows of each kind that a difference names."""


class Row(Record, frozen=True, kw_only=True):
    """A training row, as far as people look at it."""

    id: str
    trace_id: str
    problem_id: str | None
    slice: str
    reward: float | None
    confirmed_by: str | None
    origin: str
    weight: float
    messages: tuple[Message, ...]
    completion: Message


class Page(Record, frozen=True, kw_only=True):
    rows: tuple[Row, ...]
    total: int
    """Rows that fit what was asked for."""


class Difference(Record, frozen=True, kw_only=True):
    """What a dataset has that another has not. Rows are the same where prompt and answer are."""

    same: int
    added: int
    removed: int
    changed: int
    """Traces that are in both with another answer or prompt; also among added and removed."""
    reweighted: int
    """Of the same rows, those whose reward or weight is another."""
    added_rows: tuple[Row, ...]
    """The first of them."""
    removed_rows: tuple[Row, ...]


class DroppedPage(Record, frozen=True, kw_only=True):
    kept: dict[str, int]
    """Rule -> dropped rows that are kept as examples."""
    rows: tuple[Dropped, ...]


def page(home: Home, dataset: Dataset, *, text: str = "", offset: int = 0, limit: int = 20) -> Page:
    """Rows in the file's order.

    Args:
        text: only rows whose prompt, answer or ids hold it, whatever its case.
    """
    wanted = text.strip()
    fits = " OR ".join(f"contains(lower({one}), lower($text))" for one in _SEARCHED)
    where = f"WHERE {fits}" if wanted else ""
    given: dict[str, Any] = {"file": str(_file(home, dataset))}
    given |= {"text": wanted} if wanted else {}
    with _memory(given["file"]) as database:
        ((total,),) = database.execute(
            f"SELECT count(*) FROM read_parquet($file) {where}", given
        ).fetchall()
        rows = named(
            database,
            f"SELECT {_NARROW} FROM read_parquet($file) {where} ORDER BY id, trace_id "
            "LIMIT $limit OFFSET $offset",
            {**given, "limit": limit, "offset": offset},
        )
    return Page(rows=tuple(_row(row) for row in rows), total=int(total))


def difference(home: Home, dataset: Dataset, other: Dataset) -> Difference:
    """What `dataset` has and `other` has not, and the other way round."""
    given = {"new": str(_file(home, dataset)), "old": str(_file(home, other))}
    with _memory(*given.values()) as database:
        for name, file in given.items():
            # What is wide stays in the file: of a million rows this is all that must be in memory.
            database.execute(
                f"CREATE TEMP TABLE {name} AS SELECT id, trace_id, reward, weight "
                "FROM read_parquet($file)",
                {"file": file},
            )
        (counts,) = named(database, _COUNTS, {})
        added = named(database, _ONLY_IN.format(other="old"), {"file": given["new"]})
        removed = named(database, _ONLY_IN.format(other="new"), {"file": given["old"]})
    return Difference(
        **counts,
        added_rows=tuple(_row(row) for row in added),
        removed_rows=tuple(_row(row) for row in removed),
    )


def sorted_pairs(home: Home, dataset: Dataset, to: Path) -> None:
    """Writes its pairs to `to`, each chosen answer before the rejected one; what does not fit in
    memory is sorted on disk."""
    given = {"file": str(_file(home, dataset)), "to": str(to)}
    with _memory(given["file"]) as database:
        database.execute(f"SET temp_directory = '{_quoted(to.parent / '.sorting')}'")
        database.execute(
            "COPY (SELECT * FROM read_parquet($file) WHERE pair_id IS NOT NULL "
            "ORDER BY pair_id, label) TO $to (FORMAT parquet, COMPRESSION zstd)",
            given,
        )


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def narrow_columns(home: Home, dataset: Dataset) -> "pl.DataFrame":
    """The dataset's rows as `storage.narrow` has them, in the file's order."""
    import polars as pl

    from storage.narrow import narrow

    frames, done = [narrow(())], 0
    for batch in read_batches(_file(home, dataset)):
        report("read", done, dataset.rows)
        frames.append(narrow(batch))
        done += len(batch)
    return pl.concat(frames)


def identities(home: Home, dataset: Dataset) -> list[tuple[str, str | None, str | None]]:
    """(trace, problem, conversation) of its rows, each once."""
    file = str(_file(home, dataset))
    with _memory(file) as database:
        return database.execute(
            "SELECT DISTINCT trace_id, problem_id, conversation FROM read_parquet($file)",
            {"file": file},
        ).fetchall()


def dropped(home: Home, dataset: Dataset, *, rule: str = "", limit: int = 200) -> DroppedPage:
    """Rows that did not get in, each with the rule and why: the examples that were kept.

    Raises:
        CorruptFile: their file is none of ours.
    """
    path = home.path(dataset.path) / "dropped.jsonl"
    kept: dict[str, int] = {}
    rows: list[Dropped] = []
    try:
        with path.open("rb") as file:
            for line in file:
                one = msgspec.json.decode(line, type=Dropped)
                kept[one.rule] = kept.get(one.rule, 0) + 1
                if len(rows) < limit and rule in ("", one.rule):
                    rows.append(one)
    except FileNotFoundError:
        return DroppedPage(kept={}, rows=())
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{path} is not a list of dropped rows: {error}") from error
    return DroppedPage(kept=kept, rows=tuple(rows))


_NARROW = (
    "id, trace_id, problem_id, slice, reward, confirmed_by, origin, weight, messages, completion"
)
_SEARCHED = ("messages", "completion", "id", "trace_id", "coalesce(problem_id, '')", "slice")
_ONLY_IN = f"""SELECT {_NARROW} FROM read_parquet($file)
    WHERE id NOT IN (SELECT id FROM {{other}})
    ORDER BY id, trace_id LIMIT {EXAMPLES}"""
_COUNTS = """SELECT
    (SELECT count(*) FROM new WHERE id IN (SELECT id FROM old)) AS same,
    (SELECT count(*) FROM new WHERE id NOT IN (SELECT id FROM old)) AS added,
    (SELECT count(*) FROM old WHERE id NOT IN (SELECT id FROM new)) AS removed,
    (SELECT count(DISTINCT trace_id) FROM new WHERE id NOT IN (SELECT id FROM old)
        AND trace_id IN (SELECT trace_id FROM old WHERE id NOT IN (SELECT id FROM new))) AS changed,
    (SELECT count(*) FROM new JOIN old USING (id)
        WHERE new.reward IS DISTINCT FROM old.reward OR new.weight <> old.weight) AS reweighted"""


def _file(home: Home, dataset: Dataset) -> Path:
    """
    Raises:
        UsageError: the dataset's file is gone.
    """
    path = home.path(dataset.path) / "rows.parquet"
    if not path.is_file():
        raise UsageError(
            f"dataset {dataset.id} is not at {path}: erased or moved away; curating again writes it"
        )
    return path


@contextlib.contextmanager
def _memory(*files: str) -> Iterator["DuckDBPyConnection"]:
    """
    Raises:
        CorruptFile: a file is no Parquet of ours.
    """
    import duckdb

    with duckdb.connect(config={"threads": 2, "memory_limit": "1GB"}) as database:
        try:
            yield database
        except duckdb.Error as error:
            raise CorruptFile(f"{' or '.join(files)} cannot be read: {error}") from error


def _row(row: dict[str, Any]) -> Row:
    return Row(
        **{
            **row,
            "messages": msgspec.json.decode(row["messages"], type=tuple[Message, ...]),
            "completion": msgspec.json.decode(row["completion"], type=Message),
        }
    )
