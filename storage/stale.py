"""How far a dataset's rows were graded otherwise than their traces are graded now.

A dataset enters; leave the rows that differ, by what changed: the grader, a person's label, or
feedback. Its files and the store are only read; looked at are the traces that were graded or spoken
of since. Invariant: a row counts once, and a grade that is gone is no difference.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flywheel.data_section import LabelsSection
from flywheel.home import Home
from flywheel.ids import canonical, digest
from flywheel.lineage import Dataset, MarkCause
from flywheel.records import Grade, Record
from flywheel.reviews import NAME
from flywheel.rows import Signal
from storage.changed import SPOKEN_OF
from storage.database import reading
from storage.judgements import grades
from storage.rows import named

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BATCH = 2000


class Stale(Record, frozen=True, kw_only=True):
    touched: dict[MarkCause, int]
    """Rows that differ, by cause."""
    spoken: tuple[str, ...]
    """Traces that its rows are of, or whose problems they answer, and that more was said of since
    it was made."""
    digest: str
    """Of which rows differ, and how: the same as long as nothing else changes."""


class _Difference(NamedTuple):
    row: str
    cause: MarkCause
    what: str


_FIRST: tuple[MarkCause, ...] = ("grader", "label", "feedback")
"""Of two causes of one row the earlier one is told."""


def made_at(home: Home, dataset: str) -> int:
    """The ledger sequence of a dataset's record."""
    with reading(home) as database:
        if database is None:
            return 0
        ((found,),) = database.execute(
            "SELECT coalesce(max(since), 0) FROM datasets WHERE id = ?", [dataset]
        ).fetchall()
    return int(found)


def stale(
    home: Home, dataset: Dataset, traffic: str, sequence: int, labels: LabelsSection
) -> Stale | None:
    """
    Args:
        traffic: the project whose traces its rows are of.
        sequence: the ledger's, that it was made from.
        labels: what a label of several reviewers is.

    Returns: None = its rows are not in this home.
    """
    file = home.path(dataset.path) / "rows.parquet"
    if not file.is_file():
        return None
    given = {"file": str(file), "project": traffic, "since": sequence}
    with reading(home) as database:
        if database is None:
            return None
        spoken = _ids(database, _SPOKEN, given)
        ruled = set(_ids(database, _RULED, given))
        graded = _ids(database, _GRADED, {"file": str(file), "since": sequence})
        found = list(_posed_otherwise(database, str(file), ruled)) if _poses(file) else []
    for start in range(0, len(graded), _BATCH):
        ids = graded[start : start + _BATCH]
        found += _graded_otherwise(file, ids, grades(home, trace_ids=ids, labels=labels), ruled)
    by_row: dict[str, MarkCause] = {}
    for one in found:
        by_row[one.row] = min(by_row.get(one.row, one.cause), one.cause, key=_FIRST.index)
    causes = [*by_row.values()]
    return Stale(
        touched={cause: causes.count(cause) for cause in _FIRST if cause in causes},
        spoken=tuple(spoken),
        digest=digest(sorted(found)),
    )


_ASKED = """asked AS (
    SELECT made.id AS row_id, coalesce(problems.trace_id, made.trace_id) AS trace_id
    FROM read_parquet($file) AS made LEFT JOIN problems ON problems.id = made.problem_id)"""
"""Each row with the trace that people would speak of: of a problem the one it was mined from."""
_SPOKEN = f"""WITH {_ASKED} SELECT DISTINCT id FROM ({SPOKEN_OF}) AS spoken
    SEMI JOIN asked ON spoken.id = asked.trace_id ORDER BY id"""
_RULED = f"""WITH {_ASKED} SELECT DISTINCT row_id FROM asked JOIN feedback ON target = trace_id
    WHERE feedback.project = $project AND target_kind = 'trace' AND name = '{NAME}'
    AND feedback.since > $since"""
_GRADED = """SELECT DISTINCT trace_id FROM grades WHERE since > $since AND trace_id IN
    (SELECT trace_id FROM read_parquet($file)) ORDER BY trace_id"""


def _ids(database: "DuckDBPyConnection", query: str, given: dict[str, Any]) -> list[str]:
    return [one for (one,) in database.execute(query, given).fetchall()]


def _graded_otherwise(
    file: Path, ids: Sequence[str], given: Sequence[Grade], ruled: set[str]
) -> Iterator[_Difference]:
    """Of a batch of traces: the rows whose grades differ from these."""
    import polars as pl

    now: dict[str, list[Grade]] = {}
    for grade in given:
        now.setdefault(grade.trace_id, []).append(grade)
    there = pl.read_parquet_schema(file)
    columns = [name for name in ("signals", "reward", "label") if name in there]
    rows = (
        pl.scan_parquet(file, glob=False)
        .filter(pl.col("trace_id").is_in(list(ids)))
        .select("id", "trace_id", "span_id", *columns)
        .collect()
    )
    for row in rows.iter_rows(named=True):
        mine = [
            one for one in now.get(row["trace_id"], ()) if one.span_id in (None, row["span_id"])
        ]
        was = msgspec.json.decode(row.get("signals") or "[]", type=tuple[Signal, ...])
        told = _by_signal(was, mine) if was else _by_score(row, mine)
        for cause, what in told:
            ours: MarkCause = "label" if cause == "feedback" and row["id"] in ruled else cause
            yield _Difference(row["id"], ours, what)


def _by_signal(was: Sequence[Signal], now: Sequence[Grade]) -> Iterator[tuple[MarkCause, str]]:
    before = {one.reward: one for one in was}
    for grade in now:
        old = before.get(grade.reward)
        same = old is not None and _close(old.value, grade.value) and old.weight == grade.weight
        if same or not (grade.weight or (old and old.weight)):
            continue
        if grade.kind == "human":
            cause: MarkCause = "label"
        else:
            cause = "grader" if old is None or old.grader != grade.grader else "feedback"
        yield cause, f"{grade.reward} {grade.value} {grade.weight}"


def _by_score(row: dict[str, Any], now: Sequence[Grade]) -> Iterator[tuple[MarkCause, str]]:
    """Of a row that does not say what its reward was made of."""
    weighing = [one for one in now if one.weight and one.span_id is None]
    if row.get("label") is not None or not weighing:
        return
    values = [one.value for one in weighing]
    known = [value for value in values if value is not None]
    score = None
    if len(known) == len(values):
        total = sum(one.weight for one in weighing)
        score = sum(one.weight * value for one, value in zip(weighing, known, strict=True)) / total
    if not _close(row["reward"], score):
        people = any(one.kind == "human" for one in weighing)
        yield "label" if people else "feedback", f"reward {score}"


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= 1e-9


def _poses(file: Path) -> bool:
    import polars as pl

    return "truth" in pl.read_parquet_schema(file)


def _posed_otherwise(
    database: "DuckDBPyConnection", file: str, ruled: set[str]
) -> Iterator[_Difference]:
    """Problems that are yet to be answered, and whose truth is another now."""
    rows = named(
        database,
        "SELECT made.id, truth, body -> '$.answer' AS answer FROM read_parquet($file) AS made "
        "JOIN problems ON problems.id = made.problem_id WHERE made.environment IS NOT NULL",
        {"file": file},
    )
    for row in rows:
        was, now = (
            canonical(msgspec.json.decode(one or "null")) for one in (row["truth"], row["answer"])
        )
        if was != now:
            cause: MarkCause = "label" if row["id"] in ruled else "feedback"
            yield _Difference(row["id"], cause, f"truth {now!r}")
