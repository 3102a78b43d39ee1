"""Which of two answers people prefer, as it came by the gateway's feedback: see `serving.feedback`.

Enter a project and a moment; leave pairs of answers, each where it stands in the store. Invariant:
of each pair the one that most people prefer is the better; where they are at odds it is left out.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from flywheel.home import Home
from storage.database import reading


class Answer(NamedTuple):
    trace_id: str
    handle: str
    """The id that it was named by: of the trace, or of a response in it."""
    choice: int = 0
    """Which of several answers of one response."""


class Preferred(NamedTuple):
    chosen: Answer
    rejected: Answer


def preferences(home: Home, project: str, *, until: int | None = None) -> list[Preferred]:
    """Every pair once.

    Args:
        until: the ledger's sequence after which nothing was seen. None = all.
    """
    with reading(home) as database:
        if database is None:
            return []
        said = database.execute(_SAID, {"project": project, "until": until}).fetchall()
        pairs = list(_led(said))
        if not pairs:
            return []
        handles = sorted({handle for pair in pairs for handle, _ in pair})
        found = database.execute(_STANDS, {"project": project, "handles": handles}).fetchall()
    traces: dict[str, str] = dict(found)
    return [
        Preferred(*(Answer(traces[handle], handle, choice) for handle, choice in pair))
        for pair in pairs
        if all(handle in traces for handle, _ in pair)
    ]


_Side = tuple[str, int]


def _led(said: list[tuple[str, str, str, int]]) -> Iterator[tuple[_Side, _Side]]:
    """Of each pair that people are not at odds about the better and the worse."""
    pairs: dict[tuple[str, str], Counter[str]] = {}
    for target, name, value, people in said:
        pairs.setdefault((target, name), Counter())[value] += people
    for (target, _), votes in sorted(pairs.items()):
        first, *others = votes.most_common(2)
        if others and others[0][1] == first[1]:
            continue
        value = msgspec.json.decode(first[0])
        better, worse = (
            (one, 0) if isinstance(one, str) else (target, int(one))
            for one in (value["chosen"], value["rejected"])
        )
        yield better, worse


_SAID = """
WITH latest AS (
    SELECT target, name, body ->> '$.value' AS value FROM feedback
    WHERE project = $project AND ($until::BIGINT IS NULL OR since <= $until)
        AND target_kind = 'span' AND body ->> '$.kind' = 'preference'
    QUALIFY row_number() OVER (PARTITION BY target, name, said_by ORDER BY said DESC, id DESC) = 1
)
SELECT target, name, value, count(*) FROM latest GROUP BY ALL ORDER BY ALL
"""
_STANDS = """
WITH wanted AS (SELECT unnest($handles) AS handle), known AS (
    SELECT unnest(handles) AS handle, trace_id, 0 AS rank FROM cards
        WHERE project = $project AND list_has_any(handles, $handles)
    UNION ALL SELECT trace_id, trace_id, 1 FROM cards
        WHERE project = $project AND trace_id IN (SELECT handle FROM wanted)
    UNION ALL SELECT external_id, trace_id, 1 FROM cards
        WHERE project = $project AND external_id IN (SELECT handle FROM wanted)
)
SELECT handle, arg_min(trace_id, (rank, trace_id)) AS trace_id
FROM known WHERE handle IN (SELECT handle FROM wanted) GROUP BY handle
"""
