"""Snapshots: a moment of the store that a reader may stay with, whatever is committed since.

A snapshot is a ledger sequence. What was replaced stays in history tables, so that a reader of one
sees traces and feedback exactly as they stood then.
"""

from flywheel.home import Home
from flywheel.ids import digest
from flywheel.records import Record
from storage.copies import RECORDED
from storage.database import reading

EFFECTIVE = """SELECT * FROM feedback WHERE since <= $sequence
    QUALIFY row_number() OVER (PARTITION BY project, target, target_kind, name, said_by
                               ORDER BY said DESC, id DESC) = 1"""
"""Feedback that stands at `$sequence`: of each person and name the latest."""


class Snapshot(Record, frozen=True, kw_only=True):
    sequence: int
    """The last transaction that it sees; 0 = nothing."""
    digest: str
    """Of the project's recorded traces and effective feedback. Sampled answers do not enter."""


def snapshot(home: Home, project: str, *, at: int | None = None) -> Snapshot:
    """What there is now, to read from for as long as a turn takes.

    Args:
        at: nanoseconds; traces that must be gone by then do not enter the digest.
    """
    with reading(home) as database:
        if database is None:
            return Snapshot(sequence=0, digest=digest([], []))
        ((sequence,),) = database.execute(
            "SELECT coalesce(max(sequence), 0) FROM segments"
        ).fetchall()
        traces = database.execute(
            "SELECT id, digest FROM traces WHERE project = $project AND duplicate_of IS NULL "
            f"AND origin IN {RECORDED} AND ($at IS NULL OR expires IS NULL OR expires > $at) "
            "ORDER BY id",
            {"project": project, "at": at},
        ).fetchall()
        feedback = database.execute(
            f"SELECT id FROM ({EFFECTIVE}) WHERE project = $project ORDER BY id",
            {"sequence": sequence, "project": project},
        ).fetchall()
    return Snapshot(sequence=sequence, digest=digest(traces, feedback))


def sequence_of(snapshot: Snapshot | int | None) -> int | None:
    return snapshot.sequence if isinstance(snapshot, Snapshot) else snapshot


def standing(table: str, sequence: int | None) -> str:
    """`table` as it stands, or as it stood."""
    if sequence is None:
        return f"SELECT * FROM {table}"
    at = int(sequence)
    return f'SELECT * FROM all_{table} WHERE since <= {at} AND ("until" IS NULL OR "until" > {at})'
