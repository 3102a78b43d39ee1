"""The chain from a deployment down to the traces that made it, and from a trace up to deployments.

An id of anything enters; links leave, from the deployment's end to the traces' end, each naming
what it came from. Every record names its predecessor, so this only follows names. The deployment
that a run started from is named and not followed: its own lineage says what made it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Record
from storage.database import reading
from storage.rows import named, seen_as, table_of
from storage.undeployed import tried_as

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row = dict[str, Any]
Ref = tuple[str, str]
"""(kind, id)"""


class Link(Record, frozen=True, kw_only=True):
    kind: str
    """deployment, decision, evaluation, checkpoint, run, dataset, problem or trace."""
    id: str
    note: str = ""
    """What a person wants to know of it, in a few words."""
    parents: tuple[str, ...] = ()
    """Ids of what it came from."""


@dataclass(frozen=True)
class _Kind:
    table: str
    note: Callable[[Row], str]
    parents: Callable[[Row], list[Ref]]
    children: tuple[tuple[str, str], ...]
    """(kind, its column that names this one)."""
    named_only: Callable[[Row], list[str]] = lambda row: []
    """Ids of predecessors that are not followed."""


def _refs(row: Row, **columns: str) -> list[Ref]:
    return [(kind, row[name]) for kind, name in columns.items() if row[name] is not None]


_KINDS: dict[str, _Kind] = {
    "deployment": _Kind(
        "deployments",
        lambda row: f"{row['project']} version {row['version']}",
        lambda row: _refs(row, checkpoint="checkpoint_id", run="run_id"),
        (),
    ),
    "decision": _Kind(
        "decisions",
        lambda row: f"{row['outcome']} by the {row['gate']} gate",
        lambda row: _refs(row, evaluation="evaluation_id", run="run_id"),
        (),
    ),
    "evaluation": _Kind(
        "evaluations",
        lambda row: f"{row['candidate']} against {row['champion']}",
        lambda row: _refs(row, run="run_id"),
        (("decision", "evaluation_id"),),
    ),
    "checkpoint": _Kind(
        "checkpoints",
        lambda row: row["path"],
        lambda row: _refs(row, run="run_id"),
        (("deployment", "checkpoint_id"),),
        lambda row: [row["parent"]] if row["parent"] else [],
    ),
    "run": _Kind(
        "runs",
        lambda row: f"{row['algorithm']} from {row['champion']}",
        lambda row: _refs(row, dataset="dataset_id"),
        (("checkpoint", "run_id"), ("evaluation", "run_id"), ("decision", "run_id"),
         ("deployment", "run_id")),
        lambda row: [row["champion"]],
    ),
    "dataset": _Kind(
        "datasets",
        lambda row: f"{row['rows']} rows",
        lambda row: [],
        (("run", "dataset_id"),),
        lambda row: list(row["parents"]),
    ),
    "problem": _Kind(
        "problems",
        lambda row: f"{row['split']} of {row['environment']}",
        lambda row: _refs(row, trace="trace_id"),
        (),
    ),
    "trace": _Kind(
        "traces",
        lambda row: f"{row['origin']} of {row['source']}, {row['external_id']}",
        lambda row: _refs(row, problem="problem_id"),
        (("problem", "trace_id"),),
    ),
}  # fmt: skip
"""From the deployment's end to the traces' end."""


def lineage(home: Home, id: str) -> list[Link]:
    """What `id` came from and what came of it, itself included.

    Args:
        id: of a deployment (its name), decision, evaluation, checkpoint, run, dataset, problem or
            trace (the sender's id will do).

    Raises:
        UsageError: nothing has this id, or it is a version's that was never deployed.
    """
    with reading(home) as database:
        start = _named_by(database, id) if database is not None else []
        if database is not None and not start and (tried := tried_as(database, id)):
            raise UsageError("; ".join(tried))
        if database is None or not start:
            raise UsageError(f"nothing in {home.root} has the id {id}: see `flywheel status`")
        walk = _Walk(database, home)
        down = list(start)
        for kind, name in start:
            if kind == "deployment":
                down += walk.children("decision", "deployment", {name})
        seen = walk.follow(down, walk.parents_of) | walk.follow(start, walk.children_of)
        return walk.links(seen)


def _named_by(database: "DuckDBPyConnection", id: str) -> list[Ref]:
    found = []
    for kind, about in _KINDS.items():
        also = " OR external_id = $id" if kind == "trace" else ""
        rows = database.execute(
            f"SELECT id FROM {about.table} WHERE id = $id{also}", {"id": id}
        ).fetchall()
        found += [(kind, one) for (one,) in rows]
    return found


class _Walk:
    """Goes along the names, all of one kind at a time."""

    def __init__(self, database: "DuckDBPyConnection", home: Home) -> None:
        self._database, self._home = database, home

    def follow(self, start: Iterable[Ref], step: Callable[[str, set[str]], list[Ref]]) -> set[Ref]:
        seen: set[Ref] = set()
        ahead = set(start)
        while ahead:
            seen |= ahead
            found: set[Ref] = set()
            for kind in {kind for kind, _ in ahead}:
                found.update(step(kind, {id for one, id in ahead if one == kind}))
            ahead = found - seen
        return seen

    def rows(self, kind: str, ids: set[str]) -> list[Row]:
        return self._where(kind, "id", ids)

    def parents_of(self, kind: str, ids: set[str]) -> list[Ref]:
        if kind == "dataset":
            return [("trace", trace) for _, trace, _ in self._dataset_rows(ids)]
        return [ref for row in self.rows(kind, ids) for ref in _KINDS[kind].parents(row)]

    def children_of(self, kind: str, ids: set[str]) -> list[Ref]:
        found = [
            ref for child, column in _KINDS[kind].children
            for ref in self.children(child, column, ids)
        ]  # fmt: skip
        if kind == "trace":
            found += [("dataset", one) for one, *_ in self._dataset_rows(None, traces=ids)]
        if kind == "decision":
            rows = self.rows(kind, ids)
            found += [ref for row in rows for ref in _refs(row, deployment="deployment")]
        if kind == "problem":
            found += [("trace", trace) for _, trace, _ in self._dataset_rows(None, problems=ids)]
        return found

    def children(self, kind: str, column: str, ids: set[str]) -> list[Ref]:
        return [(kind, row["id"]) for row in self._where(kind, column, ids)]

    def links(self, refs: set[Ref]) -> list[Link]:
        made = []
        for kind, about in _KINDS.items():
            ids = {id for one, id in refs if one == kind}
            traces: dict[str, list[str]] = {}
            if kind == "dataset":
                for dataset, trace, _ in self._dataset_rows(ids):
                    traces.setdefault(dataset, []).append(trace)
            for row in self.rows(kind, ids):
                parents = [id for _, id in about.parents(row)] + about.named_only(row)
                parents += sorted(set(traces.get(row["id"], ())))
                note = about.note(row)
                made.append(Link(kind=kind, id=row["id"], note=note, parents=tuple(parents)))
        return made

    def _where(self, kind: str, column: str, ids: set[str]) -> list[Row]:
        if not ids:
            return []
        keys = table_of({"wanted_id": "VARCHAR"}, [(one,) for one in sorted(ids)])
        order = "started NULLS FIRST, id" if kind == "trace" else "since, id"
        with seen_as(self._database, "wanted", keys):
            return named(
                self._database,
                f"SELECT * FROM {_KINDS[kind].table} WHERE {column} IN "
                f"(SELECT wanted_id FROM wanted) ORDER BY {order}",
                {},
            )

    def _dataset_rows(
        self,
        ids: set[str] | None,
        *,
        traces: set[str] | None = None,
        problems: set[str] | None = None,
    ) -> list[tuple[str, str, str | None]]:
        """(dataset, trace, problem) of the rows of datasets whose file is still there."""
        found = self._database.execute("SELECT id, path FROM datasets").fetchall()
        files = {
            str(path): one for one, folder in found
            if (ids is None or one in ids)
            and (path := self._home.path(folder) / "rows.parquet").is_file()
        }  # fmt: skip
        if not files:
            return []
        column, wanted = ("trace_id", traces) if traces is not None else ("problem_id", problems)
        keys = table_of({"wanted_id": "VARCHAR"}, [(one,) for one in sorted(wanted or ())])
        narrow = "" if wanted is None else f"WHERE {column} IN (SELECT wanted_id FROM wanted)"
        with seen_as(self._database, "wanted", keys):
            rows = self._database.execute(
                "SELECT DISTINCT filename, trace_id, problem_id FROM "
                f"read_parquet($files, filename = true) {narrow} ORDER BY ALL",
                {"files": sorted(files)},
            ).fetchall()
        return [(files[path], trace, problem) for path, trace, problem in rows]
