"""What was made of data that goes: datasets that held it, and what was trained on them.

Enter the store with what was reached (the temporary tables of `storage.reach`); leave the datasets
with how many of their rows go, and a mark for each dataset, checkpoint and deployment whose lineage
had it: of that dataset, of rollouts that trained online, or of weights that such a one began from.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flywheel.errors import CorruptFile
from flywheel.home import Home
from flywheel.lineage import Mark
from flywheel.records import Record

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


_decode = msgspec.json.Decoder(Mark).decode


class Touched(Record, frozen=True, kw_only=True):
    id: str
    project: str
    path: str
    rows: int
    of: int


def datasets_with(database: "DuckDBPyConnection", home: Home) -> list[Touched]:
    """Datasets whose files are there and hold rows of what was reached."""
    gone = _set(database, "gone")
    problems = _set(database, "gone_problems")
    found = []
    rows = database.execute('SELECT id, project, path, "rows" FROM datasets ORDER BY id').fetchall()
    for one, project, path, of in rows:
        touched = _rows_of(home.path(path) / "rows.parquet", gone, problems)
        if touched:
            found.append(Touched(id=one, project=project, path=path, rows=touched, of=of))
    return found


def marks_of(
    database: "DuckDBPyConnection", datasets: list[Touched], *, what: str, at: int
) -> list[Mark]:
    """One mark for each dataset, checkpoint and deployment that stands on what goes."""
    by_id = {one.id: one for one in datasets}
    runs = _runs(database, by_id)
    marks = [
        _mark("dataset", one.id, one.project, (one.rows, one.of), what, at) for one in datasets
    ]
    checkpoints = database.execute("SELECT id, run_id, parent FROM checkpoints").fetchall()
    tainted: dict[str, tuple[str, tuple[int, int]]] = {}
    grown = True
    deployed = database.execute(
        "SELECT id, checkpoint_id, run_id, project FROM deployments"
    ).fetchall()
    flagged: dict[str, tuple[str, tuple[int, int]]] = {}
    started = database.execute("SELECT id, champion, project FROM runs").fetchall()
    while grown:
        before = len(tainted) + len(flagged) + len(runs)
        for one, run, parent in checkpoints:
            if (cause := runs.get(run) or tainted.get(parent or "")) is not None:
                tainted.setdefault(one, cause)
        for name, checkpoint, run, _ in deployed:
            if (cause := tainted.get(checkpoint or "") or runs.get(run or "")) is not None:
                flagged.setdefault(name, cause)
        for run, champion, project in started:
            if (known := flagged.get(champion)) is not None:
                runs.setdefault(run, (project, known[1]))
        grown = len(tainted) + len(flagged) + len(runs) > before
    marks += [_mark("checkpoint", one, *cause, what, at) for one, cause in sorted(tainted.items())]
    return marks + [
        _mark("deployment", one, *cause, what, at) for one, cause in sorted(flagged.items())
    ]


def late_marks(database: "DuckDBPyConnection", *, at: int) -> list[Mark]:
    """Marks that are missing of what was made of erased data since: a training that ran on while
    its dataset was retired."""
    said = [
        _decode(body)
        for (body,) in database.execute("SELECT body FROM marks WHERE cause = 'erased'").fetchall()
    ]
    known = {one.id for one in said}
    database.execute("CREATE OR REPLACE TEMP TABLE gone AS SELECT NULL::VARCHAR AS id LIMIT 0")
    datasets = [
        Touched(id=one.target, project=one.project, path="", rows=one.touched, of=one.of)
        for one in said
        if one.target_kind == "dataset"
    ]
    made = marks_of(database, datasets, what="before it was made", at=at)
    return [one for one in made if one.id not in known]


def _runs(
    database: "DuckDBPyConnection", datasets: dict[str, Touched]
) -> dict[str, tuple[str, tuple[int, int]]]:
    """Run -> (project, (rows touched, of)), of runs that trained on what goes."""
    found: dict[str, tuple[str, tuple[int, int]]] = {}
    rows = database.execute("SELECT id, project, dataset_id FROM runs").fetchall()
    sampled = dict(
        database.execute(
            "SELECT run_id, count(*) FILTER (id IN (SELECT id FROM gone)) FROM traces "
            "WHERE origin = 'rollout' AND run_id IS NOT NULL GROUP BY run_id"
        ).fetchall()
    )
    for run, project, dataset in rows:
        if (touched := datasets.get(dataset or "")) is not None:
            found[run] = (project, (touched.rows, touched.of))
        elif dataset is None and sampled.get(run):
            found[run] = (project, (sampled[run], sampled[run]))
    return found


def _mark(
    kind: str, target: str, project: str, counts: tuple[int, int], what: str, at: int
) -> Mark:
    touched, of = counts
    return Mark(
        project=project,
        target_kind=kind,  # type: ignore[arg-type]
        target=target,
        cause="erased",
        reason=f"{touched} of {of} rows that it stands on were erased ({what})",
        touched=touched,
        of=of,
        retrain=True,
        at=at,
    )


def _rows_of(path: Path, traces: set[str], problems: set[str]) -> int:
    """Rows of a dataset's file that are of these traces or problems; 0 where there is no file.

    Raises:
        CorruptFile: it cannot be said.
    """
    if not path.is_file():
        return 0
    try:
        return _counted(path, traces, problems)
    except (OSError, ValueError) as error:
        raise CorruptFile(
            f"{path} cannot be read ({error}): `flywheel datasets rebuild {path.parent.name}` puts "
            "it back, or remove the file; then run the erasure again"
        ) from error


def _counted(path: Path, traces: set[str], problems: set[str]) -> int:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    columns = [one for one in ("trace_id", "problem_id") if one in file.schema_arrow.names]
    touched = 0
    for batch in file.iter_batches(columns=columns):
        hit = [False] * batch.num_rows
        for name, column in zip(columns, batch.columns, strict=True):
            wanted = traces if name == "trace_id" else problems
            hit = [
                before or one in wanted
                for before, one in zip(hit, pc.cast(column, "string").to_pylist(), strict=True)
            ]
        touched += sum(hit)
    return touched


def _set(database: "DuckDBPyConnection", table: str) -> set[str]:
    return {one for (one,) in database.execute(f"SELECT id FROM {table}").fetchall()}
