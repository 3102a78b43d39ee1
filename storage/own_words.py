"""Words that are the house's own: what its records' fields are called, what stands in them by
choice of ours, and the names of its projects, models and runs.

The store enters; leave words. A sender may be called like one of them, and then the word stands for
nobody: looked for in every file, and struck out, it would take the records of all others with it.
"""

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from flywheel.records import Record
from flywheel.section import Section

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LINEAGE = (
    "datasets", "runs", "checkpoints", "evaluations", "decisions", "deployments", "calibrations",
    "marks",
)  # fmt: skip
_NAMES = (
    "SELECT DISTINCT project FROM traces",
    "SELECT DISTINCT source FROM traces",
    "SELECT DISTINCT run_id FROM traces",
    "SELECT DISTINCT body ->> '$.base_model' FROM runs",
    "SELECT DISTINCT body ->> '$.base_model' FROM deployments",
    "SELECT DISTINCT environment FROM problems",
    "SELECT DISTINCT split FROM problems",
    "SELECT DISTINCT reward FROM grades",
    "SELECT DISTINCT column_name FROM duckdb_columns()",
    "SELECT DISTINCT table_name FROM duckdb_columns()",
)
_FREE = ("body", "reason")
_OTHERS = (
    # JSON and Python.
    "true", "false", "null", "none", "nan", "inf", "infinity", "default", "unknown", "undefined",
    # States of Prefect's and MLflow's runs, and what their tables and files call things.
    "scheduled", "pending", "running", "completed", "failed", "cancelled", "cancelling", "crashed",
    "paused", "suspended", "cached", "retrying", "late", "finished", "killed", "active", "deleted",
    "ready", "flow", "flow_run", "task", "task_run", "step", "timestamp", "message", "details",
    "data", "params", "metrics", "tags", "artifact", "experiment", "model", "version", "alias",
    "champion", "challenger", "loss", "epoch", "lr", "seed", "user", "assistant", "system", "tool",
    "function", "content", "prompt", "completion", "messages", "label", "admin", "root", "local",
    "localhost", "python", "json", "text", "http", "https",
)  # fmt: skip


def own_words(database: "DuckDBPyConnection") -> frozenset[str]:
    """In lower case."""
    found = set(_declared())
    for query in (*_NAMES, *_columns(database)):
        found |= {str(one).lower() for (one,) in database.execute(query).fetchall() if one}
    return frozenset(found)


def _columns(database: "DuckDBPyConnection") -> Iterator[str]:
    """Every column of lineage that holds a name."""
    rows = database.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE data_type = 'VARCHAR' "
        "AND database_name = current_database()"
    ).fetchall()
    for table, column in rows:
        if table in _LINEAGE and column not in _FREE:
            yield f'SELECT DISTINCT "{column}" FROM {table}'


@cache
def _declared() -> frozenset[str]:
    import flywheel.lineage
    import flywheel.project
    import flywheel.rows  # noqa: F401  # they declare what is looked through

    found = set(_OTHERS)
    for kind in (*_below(Record), *_below(Section)):
        for name, type in get_type_hints(kind).items():
            found |= {name.lower(), *_choices(type)}
    return frozenset(found)


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    one: type[Any]
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _choices(type: Any) -> Iterator[str]:
    for one in get_args(type):
        if isinstance(one, str):
            yield one.lower()
        else:
            yield from _choices(one)
