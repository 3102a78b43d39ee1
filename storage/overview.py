"""What a home holds and what still waits, for people who look. Read-only, one short open each."""

from collections.abc import Sequence

from flywheel.home import Home
from storage import inbox, journal
from storage.database import reading


def waiting(home: Home, *, taken: dict[str, int] | None = None) -> dict[str, int]:
    """What no commit has taken in yet: segments, and bytes of the gateway's journals.

    Args:
        taken: what `taken_in` said; None = it is asked now.
    """
    sizes = {journal.name_of(path): path.stat().st_size for path in journal.files(home)}
    taken = taken_in(home) if taken is None else taken
    left = sum(max(0, size - taken.get(name, 0)) for name, size in sizes.items())
    return {"segments": len(inbox.Inbox(home).pending()), "journal_bytes": left}


def taken_in(home: Home) -> dict[str, int]:
    """How many bytes of each journal the ledger has; changes with its sequence alone."""
    with reading(home) as database:
        rows = [] if database is None else database.execute(
            "SELECT name, max(consumed) FROM segments WHERE name LIKE 'journal:%' GROUP BY name"
        ).fetchall()  # fmt: skip
    return {name: int(consumed or 0) for name, consumed in rows}


def known_projects(home: Home) -> list[str]:
    """All projects that have traces, served here or not."""
    with reading(home) as database:
        if database is None:
            return []
        rows = database.execute("SELECT DISTINCT project FROM traces ORDER BY project").fetchall()
    return [name for (name,) in rows]


def recorded(home: Home, project: str | None, origins: Sequence[str]) -> tuple[int, int | None]:
    """How many traces of these origins there are, and when the newest began (nanoseconds)."""
    with reading(home) as database:
        if database is None:
            return 0, None
        found = database.execute(
            "SELECT count(*), max(started) FROM traces WHERE duplicate_of IS NULL "
            "AND origin IN (SELECT unnest($origins)) AND ($project IS NULL OR project = $project)",
            {"origins": list(origins), "project": project},
        ).fetchone()
    return found or (0, None)
