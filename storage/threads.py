"""Requests that were logged one by one, stitched into conversations with their branches.

Enters the committer's transaction, after its traces and spans; leaves, for each trace of one model
call that goes on from the answer of another one of the same project, source and user (and of the
same conversation, where its sender named one), which one that is, and the conversation's first. A
request goes on from the longest beginning of its messages that is an earlier request with its
answer. Where several are alike, each of those that go on takes the latest one before it that is
free, else the latest one: a branch.

Invariant: `follows` and `root` are a function of the set of traces, whatever order they came in.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from flywheel.records import Message, Trace
from storage import turns
from storage.history import form
from storage.rows import insert, seen_as, table_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST_ALIKE = 1_000
"""Requests with one history: where there are more, who goes on from whom cannot be told."""
_THREADS = {"trace_id": "VARCHAR", "since": "BIGINT", "until": "BIGINT", "follows": "VARCHAR",
            "root": "VARCHAR"}  # fmt: skip

_REACHED = """
CREATE OR REPLACE TEMP TABLE reached AS
WITH near AS (SELECT DISTINCT trace_id FROM turns SEMI JOIN changed USING (key) WHERE NOT own),
    keys AS (SELECT DISTINCT key FROM turns SEMI JOIN near USING (trace_id) WHERE NOT own
             UNION SELECT key FROM changed)
SELECT key FROM keys
"""
_FOLLOWERS = """
CREATE OR REPLACE TEMP TABLE followers AS
SELECT DISTINCT trace_id FROM turns SEMI JOIN reached USING (key) WHERE NOT own
"""
_LINKED = """
SELECT trace_id FROM threads WHERE "until" IS NULL
    AND trace_id IN (FROM followers UNION ALL FROM left_alone)
"""
"""Whose links may be other ones, or none any more."""
_PAIRS = """
WITH asked AS (FROM turns SEMI JOIN followers USING (trace_id) WHERE NOT own),
    given AS (
        SELECT key, trace_id, answer, started FROM turns SEMI JOIN asked USING (key) WHERE own
        QUALIFY count(*) OVER (PARTITION BY key) <= $most
    )
SELECT asked.trace_id, coalesce(asked.started, 0), asked.place, asked.key, asked.answer,
    given.trace_id, coalesce(given.started, 0), given.answer,
    asked.key IN (SELECT key FROM reached)
FROM asked JOIN given USING (key)
"""
_BODIES = "SELECT key, body FROM messages WHERE key IN (SELECT wanted_key FROM wanted)"
_KNOWN = """
SELECT trace_id, follows, root FROM threads WHERE "until" IS NULL AND root IN (
    SELECT root FROM threads WHERE "until" IS NULL
        AND trace_id IN (SELECT wanted_id FROM wanted)
)
"""
_ROOTS = """
SELECT trace_id, root FROM threads WHERE trace_id IN (SELECT wanted_id FROM wanted)
    AND since <= $sequence AND coalesce("until" > $sequence, true)
"""
_EVER = 2**62
_MOST_SHOWN = 100


def conversations(
    database: "DuckDBPyConnection", traces: Sequence[Trace], *, sequence: int | None = None
) -> list[Trace]:
    """The traces, each that its sender named no conversation of with the first trace of its thread
    for one; `sequence` as of `storage.rows.load`."""
    loose = [one.id for one in traces if one.conversation is None]
    if not loose:
        return list(traces)
    table = table_of({"wanted_id": "VARCHAR"}, [(one,) for one in loose])
    with seen_as(database, "wanted", table):
        upto = _EVER if sequence is None else sequence
        rooted = dict(database.execute(_ROOTS, {"sequence": upto}).fetchall())
    return [
        msgspec.structs.replace(one, conversation=rooted[one.id]) if one.id in rooted else one
        for one in traces
    ]


def around(database: "DuckDBPyConnection", trace_id: str) -> tuple[str | None, list[str]]:
    """What a trace goes on from, and what goes on from it, the first ones in order of id."""
    before = database.execute(
        'SELECT follows FROM threads WHERE trace_id = ? AND "until" IS NULL', [trace_id]
    ).fetchone()
    after = database.execute(
        'SELECT trace_id FROM threads WHERE follows = ? AND "until" IS NULL '
        f"ORDER BY trace_id LIMIT {_MOST_SHOWN}",
        [trace_id],
    ).fetchall()
    return (before[0] if before else None), [one for (one,) in after]


class _Pair(NamedTuple):
    follower: str
    asked_at: int
    place: int
    key: int
    repeated: int
    given: str
    given_at: int
    answer: int
    settled: bool
    """Whether all that go on from this history are looked at."""


def stitch(database: "DuckDBPyConnection", sequence: int) -> None:
    """Brings up what goes on from what, where this transaction's traces change it."""
    if not turns.renew(database, sequence):
        return
    database.execute(_REACHED)
    database.execute(_FOLLOWERS)
    found = [
        _Pair(*row) for row in database.execute(_PAIRS, {"most": MOST_ALIKE}).fetchall()
    ]  # fmt: skip
    links: dict[str, str | None] = {one: None for (one,) in database.execute(_LINKED).fetchall()}
    longest = _longest(_same(database, found))
    for one in {pair.follower for pair in longest if not pair.settled}:
        links.pop(one, None)  # its group is not whole here, and nothing in it changed
    links.update(assigned([pair for pair in longest if pair.settled]))
    _write(database, sequence, links)


def assigned(pairs: Iterable[_Pair]) -> dict[str, str]:
    """Who goes on from whom, of pairs at each follower's longest history."""
    groups: dict[int, list[_Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.key, []).append(pair)
    found: dict[str, str] = {}
    for group in groups.values():
        by_follower: dict[tuple[int, str], list[tuple[int, str]]] = {}
        for pair in group:
            by_follower.setdefault((pair.asked_at, pair.follower), []).append(
                (pair.given_at, pair.given)
            )
        taken: set[str] = set()
        for (at, follower), given in sorted(by_follower.items()):
            before = [one for one in sorted(given) if one[0] <= at] or sorted(given)[:1]
            free = [one for one in before if one[1] not in taken]
            found[follower] = (free or before)[-1][1]
            taken.add(found[follower])
    return found


def _longest(pairs: list[_Pair]) -> list[_Pair]:
    longest: dict[str, int] = {}
    for pair in pairs:
        longest[pair.follower] = max(longest.get(pair.follower, 0), pair.place)
    return [pair for pair in pairs if pair.place == longest[pair.follower]]


def _same(database: "DuckDBPyConnection", pairs: list[_Pair]) -> list[_Pair]:
    """The pairs whose answer is the one that the request repeats, in whatever form."""
    unlike = {one for pair in pairs if pair.repeated != pair.answer
              for one in (pair.repeated, pair.answer)}  # fmt: skip
    forms = _forms(database, sorted(unlike))
    return [
        pair
        for pair in pairs
        if pair.repeated == pair.answer
        or (forms.get(pair.repeated) == forms.get(pair.answer) is not None)
    ]


def _forms(database: "DuckDBPyConnection", keys: list[int]) -> dict[int, bytes]:
    if not keys:
        return {}
    with seen_as(database, "wanted", table_of({"wanted_key": "BIGINT"}, [(one,) for one in keys])):
        rows = database.execute(_BODIES).fetchall()
    return {key: form(msgspec.json.decode(body, type=Message)) for key, body in rows}


def _write(database: "DuckDBPyConnection", sequence: int, links: dict[str, str | None]) -> None:
    """The links, and the roots of all that hang on them."""
    ends = {*links, *(one for one in links.values() if one is not None)}
    wanted = table_of({"wanted_id": "VARCHAR"}, [(one,) for one in sorted(ends)])
    with seen_as(database, "wanted", wanted):
        rows = database.execute(_KNOWN).fetchall()
    before = {one: (follows, root) for one, follows, root in rows}
    follows = {one: above for one, (above, _) in before.items()} | links
    parents = {above for above in follows.values() if above is not None}
    after: dict[str, tuple[str | None, str]] = {}
    for one in {*follows, *parents}:
        if follows.get(one) is not None or one in parents:
            after[one] = (follows.get(one), _root(one, follows))
    gone = sorted(one for one in before if after.get(one) != before[one])
    new = sorted(one for one in after if before.get(one) != after[one])
    table = table_of({"wanted_id": "VARCHAR"}, [(one,) for one in gone])
    with seen_as(database, "wanted", table):
        database.execute(
            'UPDATE threads SET "until" = ? WHERE "until" IS NULL '
            "AND trace_id IN (SELECT wanted_id FROM wanted)",
            [sequence],
        )
    insert(database, "threads", _THREADS, [(one, sequence, None, *after[one]) for one in new])


def _root(one: str, follows: dict[str, str | None]) -> str:
    while (above := follows.get(one)) is not None:  # histories grow: no way leads back
        one = above
    return one
