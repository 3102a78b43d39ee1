"""What to review next: the answers that a verdict is worth most on, with hidden gold items.

Enter a project, who looks and which items; leave trace ids, the same at each look. What somebody
saved and no commit has taken in yet is not seen here: `storage.leases` keeps it from being offered
again.
"""

from typing import Any, Literal

from flywheel.data_section import LabelsSection
from flywheel.home import Home
from flywheel.ids import seed_of
from flywheel.records import Record
from flywheel.reviews import one_person
from storage.copies import RECORDED
from storage.database import reading
from storage.labels import gold, votes
from storage.rows import named

Which = Literal["new", "second", "all", "disputed"]
"""Reviewed by fewer than are wanted, or waiting for a majority; by others and not by me; not by me;
at odds, whoever said so."""
_WAIT_S = 5.0

ORDER = (
    "first what a verdict is worth most on: how far feedback, reviewers and reward are at odds, or "
    "nobody knows, times how much of the traffic is like it, times whether it can be trained on; "
    "among equals what the model was least sure of"
)
_WHICH = {
    "new": "(len(reviewers) < $wanted OR ($adjudicate AND verdict = 0.5)) "
           "AND NOT list_contains(reviewers, $me)",
    "second": "len(reviewers) > 0 AND NOT list_contains(reviewers, $me)",
    "all": "NOT list_contains(reviewers, $me)",
    "disputed": "verdict > 0 AND verdict < 1",
}  # fmt: skip


class Ranked(Record, frozen=True, kw_only=True):
    """A trace to review, and what a verdict on it is worth: the product of the three."""

    trace_id: str
    value: float
    disagreement: float
    """0 = everything says the same; 1 = feedback, reviewers and reward contradict each other. What
    nothing graded stands at 0.6, what was graded low at 0.3, what was graded high at 0.1; a tenth
    at most is added by how unsure the model was."""
    traffic: float
    """Share of the recorded traffic that its slice has, of the largest slice's."""
    effect: float
    """1 = token-exact, 0.8 = can be rendered, 0.2 = can only be looked at."""


def queue(
    home: Home, project: str, *, me: str, which: Which = "new", recorded: bool = True,
    limit: int = 200, section: LabelsSection | None = None
) -> list[str]:  # fmt: skip
    """Traces to review, the most useful first (`ORDER`), with hidden gold items among them."""
    section = section or LabelsSection()
    found = ranked(
        home, project, me=me, which=which, recorded=recorded, limit=limit, section=section
    )
    ids = [one.trace_id for one in found]
    if not section.gold or which == "disputed":
        return ids
    return _among(ids, _gold_left(home, project, me), me, section.gold)


def ranked(
    home: Home, project: str, *, me: str, which: Which = "new", recorded: bool = True,
    limit: int = 200, section: LabelsSection | None = None
) -> list[Ranked]:  # fmt: skip
    """Traces to review with what a verdict on each is worth, the most first."""
    section = section or LabelsSection()
    conditions = ["answered", _WHICH[which]]
    values: dict[str, Any] = {"project": project}
    known = {"me": one_person(me), "wanted": section.reviewers, "adjudicate": section.adjudicate}
    values |= {name: one for name, one in known.items() if f"${name}" in _WHICH[which]}
    if recorded:
        conditions.append(f"origin IN {RECORDED}")
    query = _RANKED.format(where=" AND ".join(conditions), limit=int(limit))
    with reading(home, wait_s=_WAIT_S) as database:
        rows = [] if database is None else named(database, query, values)
    return [Ranked(**row) for row in rows]


_RANKED = f"""
WITH sliced AS (
    SELECT trace_id, any_value(slice) AS slice FROM problems WHERE trace_id IS NOT NULL
    GROUP BY trace_id
), mine AS (
    SELECT cards.*, coalesce(slice, 'all') AS slice FROM cards LEFT JOIN sliced USING (trace_id)
    WHERE project = $project AND stands_for = trace_id
), seen AS (
    SELECT slice, count(*) AS traces FROM mine WHERE origin IN {RECORDED} GROUP BY slice
), weighed AS (
    SELECT trace_id, logprob, started,
        least(1.0, greatest(
            CASE WHEN liked IS NULL OR reward IS NULL THEN 0.0 ELSE abs(liked - reward) END,
            coalesce(4 * verdict * (1 - verdict), 0.0),
            CASE WHEN reward IS NULL THEN 0.6 WHEN reward < 0.5 THEN 0.3 ELSE 0.1 END
        ) + 0.1 * coalesce(1 - exp(logprob), 0.0)) AS disagreement,
        coalesce(traces / (SELECT max(traces) FROM seen), 1.0) AS traffic,
        CASE fidelity WHEN 'trainable' THEN 1.0 WHEN 'renderable' THEN 0.8 ELSE 0.2 END AS effect
    FROM mine LEFT JOIN seen USING (slice) WHERE {{where}}
)
SELECT trace_id, disagreement * traffic * effect AS value, disagreement, traffic, effect
FROM (SELECT * REPLACE (disagreement::DOUBLE AS disagreement, traffic::DOUBLE AS traffic,
        effect::DOUBLE AS effect) FROM weighed)
ORDER BY value DESC, logprob NULLS LAST, started DESC NULLS LAST, trace_id
LIMIT {{limit}}
"""


def _gold_left(home: Home, project: str, me: str) -> list[str]:
    """Gold items that I have not judged, in an order of my own."""
    known = gold(home, project)
    mine = {one.trace_id for one in votes(home, project) if one_person(one.by) == one_person(me)}
    return sorted(set(known) - mine, key=lambda one: seed_of("gold", me, one))


def _among(ids: list[str], golden: list[str], me: str, share: float) -> list[str]:
    """Gold items strewn among `ids` by chance, the same at each look."""
    left, found = [one for one in golden if one not in ids], list[str]()
    wanted = share / (1 - share)
    for one in ids:
        if left and seed_of(me, one, left[0]) % 10_000 < wanted * 10_000:
            found.append(left.pop(0))
        found.append(one)
    return found
