"""Lists of traces and one trace in full, for people who look: each one short read-only open.

Enter a home, a project and filters that combine; leave cards, newest first, a page at a time. What
a page reads is bounded whatever the store's size, and `stamp` tells without opening it whether
anything has changed since.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flywheel.home import Home
from flywheel.records import Feedback, Grade, Record, Trace
from storage import entries
from storage.database import reading
from storage.judgements import feedback_for
from storage.merge import counted_once
from storage.rows import load, named, seen_as, table_of
from storage.threads import around, conversations

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WAIT_S = 5.0
"""How long a page waits for a commit; then it says so."""
_COPIES = 100
DEEPEST = 100_000
"""Cards that paging goes through; what lies deeper is found by filters."""


class Filters(Record, frozen=True, kw_only=True):
    """All of them combine; () and None do not narrow."""

    since: int | None = None
    """Started at or after."""
    until: int | None = None
    """Started before."""
    origins: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """Deployments, or outside our gateway the model's name."""
    reward: tuple[float, float] | None = None
    """From, to; both ends count. Traces without a reward are not in it."""
    ungraded: bool = False
    """Only those without a reward, whatever `reward` says."""
    fidelity: tuple[str, ...] = ()
    feedback: bool | None = None
    """Whether anybody said anything of it, reviews apart."""
    liked: bool | None = None
    """Whether what was said with yes or no was more yes."""
    reviewed: bool | None = None
    finish: tuple[str, ...] = ()
    failed: bool | None = None
    tokens: tuple[int, int] | None = None
    """Output tokens, from and to."""
    user: str | None = None
    conversation: str | None = None
    slices: tuple[str, ...] = ()
    copies: bool = False
    """Also those that are copies of others."""
    ids: tuple[str, ...] | None = None
    """Only these: what a search found."""


EVERYTHING = Filters()


class Card(Record, frozen=True, kw_only=True):
    """A trace in a list; see storage/migrations/0002_cards.sql for what each column means."""

    trace_id: str
    started: int | None
    origin: str
    user_id: str | None
    conversation: str | None
    model: str | None
    deployment: str | None
    finish: str | None
    failed: bool
    calls: int
    input_tokens: int | None
    output_tokens: int | None
    fidelity: str
    reward: float | None
    ungiven: int
    said: int
    liked: float | None
    verdict: float | None
    logprob: float | None


class Page(Record, frozen=True, kw_only=True):
    cards: list[Card]
    total: int
    """Of all that the filters let through."""


class Detail(Record, frozen=True, kw_only=True):
    trace: Trace
    grades: list[Grade]
    feedback: list[Feedback]
    copies: list[str]
    """Traces that are copies of this one."""
    copy_of: str | None
    problems: list[str]
    """Mined from it, or answered by it."""
    raws: list[str]
    follows: str | None
    """The logged request that it goes on from."""
    followed_by: list[str]
    """Those that go on from it; several are branches."""


def stamp(home: Home) -> str:
    """Changes with every commit; costs no open."""
    marks = []
    for name in (home.database, home.database.with_suffix(".duckdb.wal")):
        try:
            status = name.stat()
        except FileNotFoundError:
            continue
        marks.append(f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}")
    return " ".join(marks)


def page(
    home: Home, project: str, filters: Filters = EVERYTHING, *, limit: int = 50, offset: int = 0
) -> Page:
    """Cards by time, newest first (those of unknown time last)."""
    columns = ", ".join(Card.__struct_fields__)
    offset = max(0, min(offset, DEEPEST))
    with reading(home, wait_s=WAIT_S) as database:
        if database is None:
            return Page(cards=[], total=0)
        where, values = _where(project, filters)
        if filters.ids is None:
            rows, total = _ordered(database, columns, where, values, limit, offset)
        else:
            with _only(database, filters.ids):
                rows, total = _among(database, columns, where, values, limit, offset)
    return Page(cards=[Card(**row) for row in rows], total=total)


def _ordered(
    database: "DuckDBPyConnection", columns: str, where: str, values: dict[str, Any],
    limit: int, offset: int,
) -> tuple[list[dict[str, Any]], int]:  # fmt: skip
    rows = named(
        database,
        f"SELECT {columns} FROM cards WHERE {where} ORDER BY started DESC NULLS LAST, "
        f"trace_id LIMIT {int(limit)} OFFSET {offset}",
        values,
    )
    ((total,),) = database.execute(f"SELECT count(*) FROM cards WHERE {where}", values).fetchall()
    return rows, int(total)


def _among(
    database: "DuckDBPyConnection", columns: str, where: str, values: dict[str, Any],
    limit: int, offset: int,
) -> tuple[list[dict[str, Any]], int]:  # fmt: skip
    """The same of the few that a search found, with one pass over the cards instead of two."""
    found = database.execute(
        f"SELECT rowid, started, trace_id FROM cards WHERE {where}", values
    ).fetchall()
    found.sort(key=lambda one: (one[1] is None, -(one[1] or 0), one[2]))
    these = [one[0] for one in found[offset : offset + limit]]
    rows = named(
        database,
        f"SELECT {columns}, rowid AS place FROM cards WHERE rowid IN (SELECT unnest($these))",
        {"these": these},
    )
    by_place = {row.pop("place"): row for row in rows}
    return [by_place[one] for one in these], len(found)


def choices(home: Home, project: str) -> dict[str, list[str]]:
    """What there is to filter by: origins, models, fidelity, finish reasons, slices; most frequent
    first."""
    found: dict[str, list[str]] = {}
    with reading(home, wait_s=WAIT_S) as database:
        if database is None:
            return found
        for name, column in (
            ("origins", "origin"),
            ("models", "coalesce(deployment, model)"),
            ("fidelity", "fidelity"),
            ("finish", "finish"),
        ):
            rows = database.execute(
                f"SELECT {column} AS value, count(*) FROM cards WHERE project = ? "
                "AND value IS NOT NULL GROUP BY value ORDER BY count(*) DESC, value LIMIT 200",
                [project],
            ).fetchall()
            found[name] = [value for value, _ in rows]
        rows = database.execute(
            "SELECT slice FROM problems WHERE environment = $project OR trace_id IN "
            "(SELECT trace_id FROM cards WHERE project = $project) "
            "GROUP BY slice ORDER BY count(*) DESC, slice LIMIT 200",
            {"project": project},
        ).fetchall()
        found["slices"] = [one for (one,) in rows]
    return found


def detail(home: Home, trace_id: str) -> Detail | None:
    """One trace with all that is known of it; None = there is none of this id, or not any more."""
    with reading(home, wait_s=WAIT_S) as database:
        if database is None:
            return None
        near = database.execute(
            "SELECT trace_id, first_since, stands_for FROM cards WHERE trace_id = $id OR "
            "stands_for = $id ORDER BY trace_id",
            {"id": trace_id},
        ).fetchall()
        own_card = next((one for one in near if one[0] == trace_id), None)
        if own_card is None:
            return None
        _, oldest, stands_for = own_card
        loaded = load(database, [trace_id], oldest=oldest)
        if not loaded:
            return None
        ((whole, copied, raws),) = loaded
        grades = named(
            database,
            "SELECT * FROM grades WHERE trace_id = $id QUALIFY row_number() OVER (PARTITION BY "
            "span_id, reward ORDER BY given DESC, since DESC, digest DESC) = 1 "
            "ORDER BY span_id NULLS FIRST, weight DESC, reward",
            {"id": trace_id},
        )
        copies = [one for one, _, _ in near if one != trace_id][:_COPIES]
        problems = database.execute(
            "SELECT id FROM problems WHERE trace_id = ? ORDER BY id LIMIT 100", [trace_id]
        ).fetchall()
        follows, followed_by = around(database, trace_id)
        (trace,) = conversations(database, [counted_once(whole, copied)])
    said = feedback_for(home, [trace], copied=bool(copies)).get(trace_id, [])
    own = [trace.problem_id] if trace.problem_id else []
    return Detail(
        trace=trace,
        grades=[entries.record_of("grade", row) for row in grades],
        feedback=said,
        copies=copies,
        copy_of=None if stands_for == trace_id else stands_for,
        problems=[*own, *(one for (one,) in problems if one not in own)],
        raws=raws,
        follows=follows,
        followed_by=followed_by,
    )


def project_of(home: Home, trace_id: str) -> str | None:
    """Of a trace that the store has now; None = it has none of this id."""
    with reading(home, wait_s=WAIT_S) as database:
        if database is None:
            return None
        found = database.execute(
            "SELECT project FROM cards WHERE trace_id = ?", [trace_id]
        ).fetchone()
    return found[0] if found else None


class _only:
    """The ids that a search found, as a table beside the cards."""

    def __init__(self, database: "DuckDBPyConnection", ids: Sequence[str] | None) -> None:
        rows = [(one,) for one in ids or ()]
        self._table = seen_as(database, "found", table_of({"found_id": "VARCHAR"}, rows))

    def __enter__(self) -> None:
        self._table.__enter__()

    def __exit__(self, *error: object) -> None:
        self._table.__exit__(*error)


def _where(project: str, filters: Filters) -> tuple[str, dict[str, Any]]:
    conditions, values = ["project = $project"], {"project": project}

    def also(condition: str, **given: Any) -> None:
        conditions.append(condition)
        values.update(given)

    if not filters.copies:
        also("stands_for = trace_id")
    if filters.ids is not None:
        also("trace_id IN (SELECT found_id FROM found)")
    for name, column in _ONE_OF.items():
        if wanted := getattr(filters, name):
            also(f"{column} IN (SELECT unnest(${name}))", **{name: list(wanted)})
    for name, condition in _AT.items():
        if (value := getattr(filters, name)) is not None:
            also(condition, **{name: value})
    for name, (yes, no) in _WHETHER.items():
        if (value := getattr(filters, name)) is not None:
            also(yes if value else no)
    if filters.ungraded:
        also("reward IS NULL")
    elif filters.reward is not None:
        also("reward BETWEEN $low AND $high", low=filters.reward[0], high=filters.reward[1])
    if filters.tokens is not None:
        also("output_tokens BETWEEN $least AND $most", least=filters.tokens[0],
             most=filters.tokens[1])  # fmt: skip
    if filters.slices:
        also(_IN_SLICE, slices=list(filters.slices))
    return " AND ".join(conditions), values


_ONE_OF = {
    "origins": "origin",
    "models": "coalesce(deployment, model)",
    "fidelity": "fidelity",
    "finish": "coalesce(finish, 'unknown')",
}
_AT = {
    "since": "started >= $since",
    "until": "started < $until",
    "user": "user_id = $user",
    "conversation": "conversation = $conversation",
}
_WHETHER = {
    "feedback": ("said > 0", "said = 0"),
    "liked": ("liked > 0.5", "liked <= 0.5"),
    "reviewed": ("len(reviewers) > 0", "len(reviewers) = 0"),
    "failed": ("failed", "NOT failed"),
}
_IN_SLICE = """(trace_id IN (SELECT trace_id FROM problems WHERE slice IN (SELECT unnest($slices)))
    OR problem_id IN (SELECT id FROM problems WHERE slice IN (SELECT unnest($slices))))"""
