"""Phoenix's REST API: spans of a project, a page after another by the server's own cursor
(https://arize.com/docs/phoenix, `GET /v1/projects/{project}/spans`)."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from storage.pull.asking import Server
from storage.pull.page import Page, Span, iso

_PAGE = 500


def pages(server: Server, project: str, span: Span, at: dict[str, Any] | None) -> Iterator[Page]:
    cursor = (at or {}).get("cursor")
    while True:
        found = server.get(
            f"/v1/projects/{quote(project, safe='')}/spans", limit=_PAGE, cursor=cursor,
            start_time=iso(span.since), end_time=iso(span.until),
        )  # fmt: skip
        cursor = found.get("next_cursor")
        yield Page(found.get("data", []), {"cursor": cursor} if cursor else None)
        if not cursor:
            return
