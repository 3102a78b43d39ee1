"""What senders said about whether their traces may be learnt from, over a dataset's traces."""

from collections.abc import Sequence

from flywheel.home import Home
from storage.database import reading
from storage.rows import seen_as, table_of

GONE = "not in the store any more"


def consents(home: Home, trace_ids: Sequence[str]) -> dict[str, int]:
    """granted, denied, not said, or gone -> how many of these traces."""
    with reading(home) as database:
        if database is None:
            return {GONE: len(trace_ids)} if trace_ids else {}
        keys = table_of({"wanted_id": "VARCHAR"}, [(one,) for one in trace_ids])
        with seen_as(database, "wanted", keys):
            rows = database.execute(
                "SELECT CASE WHEN id IS NULL THEN $gone ELSE coalesce(consent, 'not said') END "
                "AS said, count(*) FROM wanted LEFT JOIN traces ON id = wanted_id GROUP BY said",
                {"gone": GONE},
            ).fetchall()
    return {said: int(count) for said, count in rows}
