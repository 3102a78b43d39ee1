"""Langfuse's public API: traces listed by time, each then read whole with its observations and
scores (https://api.reference.langfuse.com, `trace_list` and `trace_get`)."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from storage.pull.asking import Server
from storage.pull.page import Page, Span, iso

_PAGE = 50


def pages(server: Server, project: str, span: Span, at: dict[str, Any] | None) -> Iterator[Page]:
    """Its keys are of one project: a name is not asked for."""
    number = (at or {}).get("page", 1)
    while True:
        listed = server.get(
            "/api/public/traces", page=number, limit=_PAGE, orderBy="timestamp.asc",
            fromTimestamp=iso(span.since), toTimestamp=iso(span.until),
        )  # fmt: skip
        found, last = listed.get("data", []), listed.get("meta", {}).get("totalPages", number)
        rows = [server.get(f"/api/public/traces/{quote(str(one['id']), safe='')}") for one in found]
        number += 1
        more = bool(found) and number <= last
        yield Page(rows, {"page": number} if more else None)
        if not more:
            return
