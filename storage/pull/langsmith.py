"""LangSmith's API: runs of a project by time, a page after another by the server's own cursor, and
the feedback on them (https://api.smith.langchain.com/redoc, `runs/query` and `feedback`)."""

from collections.abc import Iterator
from typing import Any

from flywheel.errors import UsageError
from storage.pull.asking import Server
from storage.pull.page import Page, Span, iso

_PAGE = 100
_MOST_FEEDBACK = 100_000
"""On one page's runs."""


def pages(server: Server, project: str, span: Span, at: dict[str, Any] | None) -> Iterator[Page]:
    asked: dict[str, Any] = {
        "session": [_session(server, project)], "limit": _PAGE, "order": "asc",
        "end_time": iso(span.until),
    }  # fmt: skip
    if span.since is not None:
        asked["start_time"] = iso(span.since)
    cursor = (at or {}).get("cursor")
    while True:
        found = server.post("/api/v1/runs/query", {**asked, "cursor": cursor})
        runs = found.get("runs", [])
        cursor = (found.get("cursors") or {}).get("next")
        more = bool(runs) and cursor is not None
        yield Page([*runs, *_feedback(server, runs)], {"cursor": cursor} if more else None)
        if not more:
            return


def _session(server: Server, project: str) -> str:
    found = server.get("/api/v1/sessions", name=project, limit=1)
    if not found:
        raise UsageError(f"{server.url} has no project {project!r}")
    return str(found[0]["id"])


def _feedback(server: Server, runs: list[Any]) -> Iterator[Any]:
    """Of those runs that have any."""
    asked = [run["id"] for run in runs if run.get("feedback_stats")]
    for start in range(0, len(asked), _PAGE):
        some, offset = asked[start : start + _PAGE], 0
        while True:
            found = server.get("/api/v1/feedback", run=some, limit=_PAGE, offset=offset)
            yield from found
            offset += len(found)
            if len(found) < _PAGE or offset >= _MOST_FEEDBACK:
                break
