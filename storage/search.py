"""Full-text search over traces: SQLite's FTS5 beside the store, one file a project.

What people and models said is indexed (system prompts are not: every trace has them), by the order
of the ledger, in bounded batches by whoever has time. The index is made of the store and may be
removed at any time: a torn or missing one is built anew. Invariant: what it finds is asked of the
store again before it is shown, so a stale index shows nothing that is gone.
"""

import contextlib
import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.durable import is_full
from flywheel.errors import Busy, Full
from flywheel.home import Home
from flywheel.progress import report
from storage.database import reading
from storage.locks import held
from storage.spoken import NOTHING, spoken

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BATCH = 4000
"""Traces that one step indexes: about a second."""
PREVIEW = 240
MATCHES = 20_000
"""Newest matches that a search gives; more are counted as `many`."""
_VERSION = 1
_UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff])")
"""Letters of scripts that put no space between words: each is indexed as a word."""
_WORD = re.compile(r'"([^"]*)"|(\S+)')
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS state (version INTEGER, since INTEGER, id TEXT, indexed INTEGER);
CREATE TABLE IF NOT EXISTS docs (
    doc INTEGER PRIMARY KEY, trace_id TEXT NOT NULL UNIQUE, ask TEXT NOT NULL, answer TEXT NOT NULL
);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
    said, tokenize = "unicode61 remove_diacritics 2"
);
INSERT INTO state SELECT {_VERSION}, -1, '', 0 WHERE NOT EXISTS (SELECT 1 FROM state);
"""


class Found(NamedTuple):
    ids: list[str]
    """Newest indexed first."""
    many: bool
    """There are more than `MATCHES`; these are the newest."""
    words: list[str]
    """What was looked for, to be marked in what is shown."""


class Standing(NamedTuple):
    indexed: int
    waiting: int
    """Traces that the index does not have as they now stand."""


class Preview(NamedTuple):
    ask: str
    answer: str


def search(home: Home, project: str, text: str) -> Found:
    """Traces in which every word of `text` was said; "in quotes" as a phrase, a last word that is
    being typed as a beginning. No character has a meaning beyond these, and nothing raises."""
    query, words = _query(text)
    if not query:
        return Found([], False, words)
    found = _ask(
        home, project,
        "SELECT trace_id FROM (SELECT rowid FROM words WHERE words MATCH ? "
        "ORDER BY rowid DESC LIMIT ?) AS hit JOIN docs ON doc = hit.rowid ORDER BY doc DESC",
        [query, MATCHES + 1],
    )  # fmt: skip
    ids = [one for (one,) in found or ()]
    return Found(ids[:MATCHES], len(ids) > MATCHES, words)


def standing(home: Home, project: str) -> Standing:
    """How far the index is."""
    since, last, indexed = _place(home, project)
    with reading(home, wait_s=5.0) as database:
        if database is None:
            return Standing(0, 0)
        ((waiting,),) = database.execute(
            "SELECT count(*) FROM cards WHERE project = $project AND since >= $since "
            "AND (since > $since OR trace_id > $last)",
            {"project": project, "since": since, "last": last},
        ).fetchall()
    return Standing(indexed, int(waiting))


def previews(home: Home, project: str, ids: Collection[str]) -> dict[str, Preview]:
    """The last question and answer of traces, cut short; those not indexed yet are left out."""
    marks = ", ".join("?" * len(ids))
    query = f"SELECT trace_id, ask, answer FROM docs WHERE trace_id IN ({marks})"
    rows = _ask(home, project, query, list(ids)) or ()
    return {trace_id: Preview(ask, answer) for trace_id, ask, answer in rows}


def advance(home: Home, project: str, *, batches: int = 1) -> int:
    """Indexes what came, a bounded piece; returns how many traces, 0 = nothing waits, or another
    process is at it."""
    done = 0
    busy = "the index is being brought up by another process"
    try:
        with held(_lock(home, project), wait_s=0, busy=busy):
            for _ in range(batches):
                taken = _step(home, project)
                done += taken
                if taken and batches > 1:
                    report("indexing", done)
                if taken < BATCH:
                    break
    except Busy:
        return done
    return done


def forget(home: Home, project: str, ids: Sequence[str]) -> None:
    """Takes erased traces out, words and all; their bytes are overwritten in the file."""
    with held(_lock(home, project), wait_s=60, busy="the index is in use"):
        if not _path(home, project).exists():
            return
        with _writing(home, project) as index:
            for one in ids:
                index.execute(
                    "DELETE FROM words WHERE rowid = (SELECT doc FROM docs WHERE trace_id = ?)",
                    [one],
                )
                index.execute("DELETE FROM docs WHERE trace_id = ?", [one])
                # Where the index had come to: from there a few are indexed once more.
                index.execute("UPDATE state SET id = '' WHERE id = ?", [one])
            index.execute("UPDATE state SET indexed = (SELECT count(*) FROM docs)")
            index.execute("INSERT INTO words (words) VALUES ('optimize')")
            index.commit()
            index.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _query(text: str) -> tuple[str, list[str]]:
    """An FTS5 query in which everything that was typed is a word or a phrase."""
    terms = []
    for quoted, bare in _WORD.findall(text.replace("\x00", " ")[:1000]):
        term = (quoted or bare).replace('"', " ").strip()
        if any(letter.isalnum() for letter in term):
            terms.append(term)
    parts = [f'"{_spaced(term)}"' for term in terms[:32]]
    if parts and not text.endswith((" ", '"')):
        parts[-1] += "*"
    return " ".join(parts), terms


def _spaced(text: str) -> str:
    return _UNSPACED.sub(r" \1 ", text)


def _step(home: Home, project: str) -> int:
    with _writing(home, project) as index:
        ((since, last, _),) = index.execute("SELECT since, id, indexed FROM state").fetchall()
        with reading(home, wait_s=5.0) as database:
            if database is None:
                return 0
            if since > _newest(database):  # the store was put back to an earlier state
                index.executescript("DELETE FROM docs; DELETE FROM words; DELETE FROM state")
                index.executescript(_SCHEMA)
                since, last = -1, ""
            wanted = database.execute(
                "SELECT trace_id, since FROM cards WHERE project = $project AND since >= $since "
                "AND (since > $since OR trace_id > $last) ORDER BY since, trace_id LIMIT $limit",
                {"project": project, "since": since, "last": last, "limit": BATCH},
            ).fetchall()
            if not wanted:
                return 0
            words_of = spoken(database, [one for one, _ in wanted])
        index.executemany(
            "DELETE FROM words WHERE rowid IN (SELECT doc FROM docs WHERE trace_id = ?)",
            [(one,) for one, _ in wanted],
        )
        replaced = index.executemany(
            "DELETE FROM docs WHERE trace_id = ?", [(one,) for one, _ in wanted]
        ).rowcount
        ((top,),) = index.execute("SELECT coalesce(max(doc), 0) FROM docs").fetchall()
        docs, words = [], []
        for number, (one, _) in enumerate(wanted, top + 1):
            said = words_of.get(one, NOTHING)
            docs.append((number, one, said.ask[:PREVIEW], said.answer[:PREVIEW]))
            words.append((number, _spaced(said.said)))
        index.executemany("INSERT INTO docs VALUES (?, ?, ?, ?)", docs)
        index.executemany("INSERT INTO words (rowid, said) VALUES (?, ?)", words)
        index.execute(
            "UPDATE state SET since = ?, id = ?, indexed = indexed + ?",
            [wanted[-1][1], wanted[-1][0], len(wanted) - replaced],
        )
        index.commit()
    return len(wanted)


def _newest(database: "DuckDBPyConnection") -> int:
    ((last,),) = database.execute("SELECT coalesce(max(sequence), 0) FROM segments").fetchall()
    return int(last)


def _place(home: Home, project: str) -> tuple[int, str, int]:
    rows = _ask(home, project, "SELECT since, id, indexed FROM state")
    if not rows:
        return -1, "", 0
    ((since, last, indexed),) = rows
    return int(since), str(last), int(indexed)


def _path(home: Home, project: str) -> Path:
    return home.root / "search" / f"{project}.sqlite"


def _ask(home: Home, project: str, query: str, values: Sequence[Any] = ()) -> list[Any] | None:
    """The rows that one query gives; None = there is no index that could be read. One that is torn
    goes, so that the next step builds it anew."""
    path = _path(home, project)
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as it:
            if it.execute("SELECT version FROM state").fetchall() != [(_VERSION,)]:
                return None
            return it.execute(query, values).fetchall()
    except sqlite3.OperationalError:
        return None  # it is being made, or held for too long
    except sqlite3.DatabaseError:
        with contextlib.suppress(Busy), held(_lock(home, project), wait_s=0, busy="in use"):
            _discard(path)
        return None


def _lock(home: Home, project: str) -> Path:
    return home.locks / f"search-{project}.lock"


def _discard(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(home: Home, project: str) -> Iterator[sqlite3.Connection]:
    """The index to write to, under the caller's lock; one that is torn or of an older form is
    removed and begun anew.

    Raises:
        Full: no space left. Busy: it cannot be written now.
    """
    path = _path(home, project)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            index = _begun(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            _discard(path)
            index = _begun(path)
        with contextlib.closing(index):
            yield index
    except sqlite3.OperationalError as error:
        if is_full(error):
            raise Full(f"no space left for {path}: free some and run again") from error
        raise Busy(f"{path} cannot be written now ({error}): it is tried again later") from error
    except sqlite3.DatabaseError as error:
        _discard(path)
        raise Busy(f"{path} was damaged and is begun anew: {error}") from error


def _begun(path: Path) -> sqlite3.Connection:
    index = sqlite3.connect(path, timeout=10)
    try:
        index.execute("PRAGMA journal_mode = WAL")
        index.execute("PRAGMA synchronous = NORMAL")
        index.execute("PRAGMA secure_delete = ON")
        index.executescript(_SCHEMA)
        if index.execute("SELECT version FROM state").fetchall() != [(_VERSION,)]:
            raise sqlite3.DatabaseError("of another form")
    except BaseException:
        index.close()
        raise
    return index
