"""Why a trace is or is not in a dataset: what is known of it, and what each dataset did with it.

Enter a home and a trace's id, the sender's too; leaves one `Explained`. What the rules of now would
say is `tasks.explained`'s, since it takes the project's candidates.
"""

from typing import TYPE_CHECKING, Any

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset
from flywheel.records import Grade, Record
from storage.browse import detail
from storage.database import reading
from storage.dataset_rows import identities
from storage.datasets import DROPPED
from storage.entries import record_of
from storage.rows import named

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LATEST = 5
"""Datasets of the project that are looked into."""


class Fate(Record, frozen=True, kw_only=True):
    """What became of the trace in one dataset."""

    dataset: str
    inside: bool
    rule: str | None = None
    """That left it out. None = it is inside, or no rule is known to have."""
    why: str
    """For people."""


class Explained(Record, frozen=True, kw_only=True):
    trace_id: str
    asked: str
    """The id that was asked for: a copy's, or the sender's."""
    project: str
    source: str
    origin: str
    run_id: str | None
    """Of a rollout or evaluation."""
    copies: tuple[str, ...]
    """Under other ids; the trace that counts stands for them."""
    consent: str | None
    expires: int | None
    """Nanoseconds, when it must be gone, as its sender said."""
    fidelity: str | None
    fidelity_reasons: tuple[str, ...]
    reward: float | None
    """Weighted mean of its grades. None = there is none, or one could not be given."""
    grades: tuple[Grade, ...]
    fates: tuple[Fate, ...]
    """The project's latest datasets, the last one first."""

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.trace_id, *self.copies)


def explained(home: Home, id: str, *, project: str | None = None) -> Explained:
    """
    Args:
        project: whose datasets are looked into. None = the trace's own.

    Raises:
        UsageError: the store has no trace of this id.
    """
    trace_id = standing_for(home, id)
    found = detail(home, trace_id)
    if found is None:
        raise UsageError(f"trace {id} is gone: it was erased a moment ago")
    trace = found.trace
    with reading(home) as database:
        assert database is not None
        ((reward, since),) = database.execute(
            "SELECT reward, since FROM cards WHERE trace_id = ?", [trace_id]
        ).fetchall()
        datasets = _datasets(database, project or trace.project)
    ids = {trace_id, *found.copies}
    return Explained(
        trace_id=trace_id, asked=id, project=trace.project, source=trace.source,
        origin=trace.origin, run_id=trace.run_id, copies=tuple(found.copies), consent=trace.consent,
        expires=trace.expires, fidelity=trace.fidelity, fidelity_reasons=trace.fidelity_reasons,
        reward=reward, grades=tuple(found.grades),
        fates=tuple(_fate(home, one, ids, before=made < since) for one, made in datasets),
    )  # fmt: skip


def standing_for(home: Home, id: str) -> str:
    """The trace that counts for `id`, which is ours, its beginning (eight characters), or the
    sender's.

    Raises:
        UsageError: there is none, or several senders call one so.
    """
    with reading(home) as database:
        ways = ["trace_id = $id OR external_id = $id"]
        if len(id) >= 8:
            ways.append("starts_with(trace_id, $id)")
        rows: list[Any] = []
        while database is not None and ways and not rows:
            rows = database.execute(
                f"SELECT DISTINCT stands_for, project FROM cards WHERE {ways.pop(0)} ORDER BY ALL",
                {"id": id},
            ).fetchall()
    if not rows:
        raise UsageError(f"no trace of this home has the id {id}: `flywheel lineage ID` knows more")
    if len(rows) > 1:
        several = ", ".join(f"{one} ({project})" for one, project in rows[:5])
        raise UsageError(f"{len(rows)} traces are called {id}: name one of {several}")
    return str(rows[0][0])


def _datasets(database: "DuckDBPyConnection", project: str) -> list[tuple[Dataset, int]]:
    """The latest ones with the transaction that each came in."""
    rows = named(
        database,
        f"SELECT * FROM datasets WHERE project = $project ORDER BY since DESC, id LIMIT {LATEST}",
        {"project": project},
    )
    return [(record_of("dataset", row), int(row["since"])) for row in rows]


def _fate(home: Home, dataset: Dataset, ids: set[str], *, before: bool) -> Fate:
    def told(why: str, *, inside: bool = False, rule: str | None = None) -> Fate:
        return Fate(dataset=dataset.id, inside=inside, rule=rule, why=why)

    if not (home.path(dataset.path) / "rows.parquet").is_file():
        return told(f"its files are gone{f': {dataset.retired}' if dataset.retired else ''}")
    rows = sum(trace in ids for trace, *_ in identities(home, dataset))
    if rows:
        return told("it is in it", inside=True)
    if (went := _left_out(home, dataset, ids)) is not None:
        return told(went[1], rule=went[0])
    if before:
        return told("it was made before the trace was what it is now")
    return told("the trace was no candidate for it")


def _left_out(home: Home, dataset: Dataset, ids: set[str]) -> tuple[str, str] | None:
    """The rule that left the trace out, and why; None = none did."""
    import polars as pl

    path = home.path(dataset.path) / DROPPED
    if not path.is_file():
        return None
    rows = pl.scan_parquet(path, glob=False).filter(pl.col("trace_id").is_in(sorted(ids)))
    found = rows.select("rule", "reason").head(1).collect().rows()
    return found[0] if found else None
