"""Retention: what may be kept no longer, by what its sender said and by the project's file.

Enters a project's [retention] and a moment; leaves the traces whose time is over, and their
erasure. The earlier of the two ends counts. A trace without any time has no end that could be told.
"""

from flywheel.data_section import RetentionSection
from flywheel.home import Home
from flywheel.lineage import Erasure
from storage.copies import RECORDED
from storage.database import reading
from storage.erasure import erase, flag_later, resume
from storage.reach import Asked

_DAY = 86_400 * 10**9
_OVER = f"""
SELECT id FROM traces WHERE project = $project AND (
    expires <= $now
    OR (origin IN {RECORDED} AND coalesce(ended, started) <= $recorded)
    OR (origin NOT IN {RECORDED} AND coalesce(ended, started) <= $sampled)
) ORDER BY id
"""
_NEVER = -1


def over(home: Home, project: str, section: RetentionSection, *, now: int) -> list[str]:
    """Ids of traces that may be kept no longer.

    Args:
        now: nanoseconds.
    """
    with reading(home) as database:
        if database is None:
            return []
        rows = database.execute(
            _OVER,
            {
                "project": project,
                "now": now,
                "recorded": _since(section.days, now),
                "sampled": _since(section.rollout_days, now),
            },
        ).fetchall()
    return [one for (one,) in rows]


def expire(home: Home, project: str, section: RetentionSection, *, now: int) -> Erasure | None:
    """Erases them, and goes on with erasures that were killed. None = nothing was over.

    Raises:
        Busy, Full: as `erase`; the next run goes on.
    """
    resume(home)
    flag_later(home)
    asked = due(home, project, section, now=now)
    return None if asked is None else erase(home, asked, by="retention", reason=why(project))


def due(home: Home, project: str, section: RetentionSection, *, now: int) -> Asked | None:
    """What an erasure of what is over is asked for. None = nothing is."""
    ids = over(home, project, section, now=now)
    if not ids:
        return None
    return Asked(kind="retention", value=project, project=project, ids=tuple(ids))


def why(project: str) -> str:
    return f"[retention] of {project}, or their sender's word"


def projects(home: Home) -> list[str]:
    """Those that the store has traces of."""
    with reading(home) as database:
        if database is None:
            return []
        rows = database.execute("SELECT DISTINCT project FROM traces ORDER BY project").fetchall()
    return [one for (one,) in rows]


def _since(days: float | None, now: int) -> int:
    return _NEVER if days is None else int(now - days * _DAY)
