"""Versions that were tried and never deployed, by the names that their evaluations gave them.

Enters a name that no record bears as its id; leaves, for each run that it was tried in, what was
decided last.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def tried_as(database: "DuckDBPyConnection", name: str) -> list[str]:
    """A sentence a run, the newest first; [] = nothing was ever tried under this name."""
    found = database.execute(
        "SELECT e.run_id, max_by(d.outcome, d.decided), max_by(d.gate, d.decided), "
        "max_by(json_extract_string(d.body, '$.reason'), d.decided) "
        "FROM evaluations e LEFT JOIN decisions d ON d.run_id = e.run_id "
        "WHERE e.candidate = $name GROUP BY e.run_id ORDER BY max(e.since) DESC, e.run_id",
        {"name": name},
    ).fetchall()
    return [
        f"{name} was tried and never deployed: {_decided(*decided)}; its run is {run}: "
        f"`flywheel lineage {run}`"
        for run, *decided in found
    ]


def _decided(outcome: str | None, gate: str | None, reason: str | None) -> str:
    return f"{outcome} by the {gate} gate ({reason})" if outcome else "nothing is decided yet"
