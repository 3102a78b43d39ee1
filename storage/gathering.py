"""What an erasure looks for, gathered before anything goes: afterwards nobody could say it.

Enter the store with what was reached (the temporary tables of `storage.reach`); leave needles, and
where the raw bytes lie. What the data of others holds too stands for nobody and is left out, and
counted: a greeting, a shared system prompt, a name that others mention.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.records import Record
from storage.needles import (
    LONGEST,
    SHORTEST_ID,
    SHORTEST_TEXT,
    Needles,
    Search,
    pieces,
    token_piece,
)  # fmt: skip
from storage.own_words import own_words
from storage.reach import Asked

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST = 200_000
"""Pieces that are looked for; of more, as many that lie evenly among them, and the receipt says
so."""
_DIGEST = re.compile(r'"digest":"([0-9a-f]{32})"')
_MINE = "trace_id IN (SELECT id FROM gone)"
_IDS = """
SELECT id FROM all_traces WHERE id IN (SELECT id FROM gone)
UNION SELECT id FROM gone_problems UNION SELECT id FROM gone_messages
UNION SELECT id FROM gone_feedback
UNION (
    SELECT external_id FROM all_traces WHERE id IN (SELECT id FROM gone)
    UNION SELECT conversation FROM all_traces WHERE id IN (SELECT id FROM gone)
    UNION SELECT unnest(handles) FROM cards WHERE trace_id IN (SELECT id FROM gone)
    UNION SELECT id FROM all_spans WHERE trace_id IN (SELECT id FROM gone)
    EXCEPT SELECT external_id FROM traces WHERE id NOT IN (SELECT id FROM gone)
    EXCEPT SELECT conversation FROM traces WHERE id NOT IN (SELECT id FROM gone)
    EXCEPT SELECT user_id FROM traces WHERE id NOT IN (SELECT id FROM gone)
    EXCEPT SELECT id FROM all_spans WHERE trace_id NOT IN (SELECT id FROM gone)
)
"""
_SAID = (
    "SELECT body FROM messages WHERE id IN (SELECT id FROM gone_messages)",
    "SELECT body FROM feedback WHERE id IN (SELECT id FROM gone_feedback)",
    "SELECT body FROM problems WHERE id IN (SELECT id FROM gone_problems)",
)
_NOTED = (
    f"SELECT rest FROM all_spans WHERE {_MINE} AND rest IS NOT NULL",
    "SELECT rest FROM all_traces WHERE id IN (SELECT id FROM gone) AND rest IS NOT NULL",
)
_REMARKS = (
    f"SELECT reason FROM grades WHERE {_MINE} AND reason IS NOT NULL",
    f"SELECT error FROM all_spans WHERE {_MINE} AND error IS NOT NULL",
)
_OTHERS = (
    "SELECT body FROM messages WHERE id NOT IN (SELECT id FROM gone_messages)",
    "SELECT body FROM feedback WHERE id NOT IN (SELECT id FROM gone_feedback)",
    "SELECT body FROM problems WHERE id NOT IN (SELECT id FROM gone_problems)",
    "SELECT body FROM toolsets WHERE id NOT IN (SELECT id FROM gone_toolsets)",
    "SELECT rest FROM all_spans WHERE trace_id NOT IN (SELECT id FROM gone) AND rest IS NOT NULL",
    "SELECT rest FROM all_traces WHERE id NOT IN (SELECT id FROM gone) AND rest IS NOT NULL",
    "SELECT error FROM all_spans WHERE trace_id NOT IN (SELECT id FROM gone) AND error IS NOT NULL",
    "SELECT DISTINCT reason FROM grades WHERE trace_id NOT IN (SELECT id FROM gone) "
    "AND reason IS NOT NULL",
    "SELECT DISTINCT concat_ws(chr(0), external_id, conversation, user_id, tenant, source) "
    "FROM traces WHERE id NOT IN (SELECT id FROM gone)",
)
_OTHER_TOKENS = """
SELECT array_to_string(prompt_ids, ',') || ';' || array_to_string(completion_ids, ',')
FROM tokens WHERE trace_id NOT IN (SELECT id FROM gone)
"""


class Gathered(Record, frozen=True, kw_only=True):
    needles: Needles
    shared: int
    """Needles that were left out, since others' data holds them too."""
    sampled: int
    """Pieces that are not looked for, for their number."""
    too_short: int
    """Ids and texts too short to be told from others'."""
    raws: tuple[str, ...]
    """Keys of the raw store, as traces have them."""
    others: tuple[str, ...]
    """Those of them that traces of others have too: a row that told of several."""
    kept: tuple[str, ...]
    """Digests of large texts, images and files that only these traces name."""


def gather(database: "DuckDBPyConnection", asked: Asked) -> Gathered:
    ids = {one for (one,) in database.execute(_IDS).fetchall() if one is not None}
    if asked.kind in ("user", "tenant", "conversation", "trace"):
        ids.add(asked.value)
    texts = {text for query in _SAID for row in _read(database, query) for text in _leaves(row)}
    texts |= {
        text
        for query in _NOTED
        for row in _read(database, query)
        for text in _leaves(row)
        if " " in text or "@" in text
    }
    texts.update(row for query in _REMARKS for row in _read(database, query))
    short = sum(len(one) < SHORTEST_ID for one in ids)
    short += sum(len(one.strip()) < SHORTEST_TEXT for one in texts)
    cut = {piece for text in texts for piece in pieces(text)}
    tokens = set(_token_pieces(database))
    sampled = max(0, len(cut) - MOST)
    wanted = Needles(
        ids=tuple(sorted(ids)), texts=_evenly(sorted(cut)), tokens=tuple(sorted(tokens))
    )
    own = _without(wanted, _shared(database, wanted) | _ours(database, wanted))
    raws, others, kept = _raw_keys(database)
    return Gathered(
        needles=own,
        shared=_size(wanted) - _size(own),
        sampled=sampled,
        too_short=short,
        raws=raws,
        others=others,
        kept=kept,
    )


def _evenly(sorted_texts: list[str]) -> tuple[str, ...]:
    step = -(-len(sorted_texts) // MOST) or 1
    return tuple(sorted_texts[::step])


def _size(needles: Needles) -> int:
    return len(needles.ids) + len(needles.texts) + len(needles.tokens)


def _without(needles: Needles, shared: set[Any]) -> Needles:
    return Needles(
        ids=tuple(one for one in needles.ids if one not in shared),
        texts=tuple(one for one in needles.texts if one not in shared),
        tokens=tuple(one for one in needles.tokens if one not in shared),
    )


def _shared(database: "DuckDBPyConnection", wanted: Needles) -> set[Any]:
    """Needles that the store's rows of others hold."""
    search = Search(msgspec.structs.replace(wanted, tokens=()))
    found: set[Any] = set()
    for query in _OTHERS:
        for windows in _windows(database, query):
            found |= search.matched(windows)
    if wanted.tokens:
        search = Search(Needles(tokens=wanted.tokens))
        for windows in _windows(database, _OTHER_TOKENS):
            found |= search.matched(windows)
    return found


def _ours(database: "DuckDBPyConnection", wanted: Needles) -> set[Any]:
    """Needles that are words of the house: without them nobody's records could be read any more."""
    words = own_words(database)
    whole = "\0".join(words)
    texts = {one for one in wanted.texts if len(one) < LONGEST and one.lower() in whole}
    return texts | {one for one in wanted.ids if one.lower() in words}


def _windows(database: "DuckDBPyConnection", query: str) -> Iterator[list[bytes]]:
    cursor = database.execute(query)
    while rows := cursor.fetchmany(2000):
        yield [b"\0".join(text.encode("utf-8", "surrogatepass") for (text,) in rows)]


def _read(database: "DuckDBPyConnection", query: str) -> Iterator[str]:
    cursor = database.execute(query)
    while rows := cursor.fetchmany(2000):
        for (text,) in rows:
            yield text


def _leaves(body: str) -> Iterator[str]:
    """Every text in a JSON value, but what says of which kind it is."""
    waiting = [msgspec.json.decode(body)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())


def _token_pieces(database: "DuckDBPyConnection") -> Iterator[tuple[int, ...]]:
    cursor = database.execute(f"SELECT prompt_ids, completion_ids FROM tokens WHERE {_MINE}")
    while rows := cursor.fetchmany(500):
        for prompt, completion in rows:
            # The last message stands shortly before the prompt's end.
            for ids in (prompt, prompt[-48:], completion):
                if (piece := token_piece(ids)) is not None:
                    yield piece


def _raw_keys(
    database: "DuckDBPyConnection",
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    mine = _keys(database, "id IN (SELECT id FROM gone)")
    theirs = _keys(database, "id NOT IN (SELECT id FROM gone)")
    queries = (*_SAID[:1], *_NOTED)
    kept = {
        one for query in queries for row in _read(database, query) for one in _DIGEST.findall(row)
    }
    named = {key.partition("#")[0] for key in theirs}
    if kept:
        for query in (_OTHERS[0], *_OTHERS[4:6]):
            for row in _read(database, query):
                kept.difference_update(_DIGEST.findall(row))
    return _sorted(mine), _sorted(mine & theirs), _sorted(kept - named)


def _keys(database: "DuckDBPyConnection", where: str) -> set[str]:
    keys = "SELECT DISTINCT unnest(list_append(coalesce(raws, []), raw)) FROM all_traces"
    rows = database.execute(f"{keys} WHERE {where}").fetchall()
    return {one for (one,) in rows if one is not None}


def _sorted(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(keys))
