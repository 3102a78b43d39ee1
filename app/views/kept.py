"""What pages keep between reruns: each answer once a ledger sequence; a rerun reads nothing.

Enters a home and a project; leaves frozen records that all sessions share. Nothing here holds the
database: it is opened when the sequence moved. While a commit is under way the last answer stands.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from app.views.ledger_data import Ledger
from app.views.overview_data import Server
from flywheel.errors import Busy
from flywheel.home import Home
from storage.glance import Glance

Found = TypeVar("Found")
_PATIENCE_S = 0.3
"""How long a page waits for a commit before it shows what it knew."""


def sequence(home: Home) -> int:
    """The ledger's, looked up when the database file changed."""
    from storage.browse import stamp as asked_stamp

    known = _known()
    stamp = asked_stamp(home)
    last = known.get(home.root)
    if last is not None and last[0] == stamp:
        return last[1]
    from storage.glance import sequence as asked

    try:
        found = asked(home, wait_s=_PATIENCE_S if last else 120.0)
    except Busy:
        if last is None:
            raise
        return last[1]
    known[home.root] = (stamp, found)
    return found


def by_sequence(home: Home, name: str, ask: Callable[[], Found], *key: Any) -> Found:
    """`ask()`, once for each (home, sequence, name, key)."""
    found: Found = _keeper()(str(home.root), sequence(home), name, key, ask)
    return found


def ledger(home: Home, project: str) -> Ledger:
    from app.views.ledger_data import ledger as asked

    return by_sequence(home, "ledger", lambda: asked(home, project), project)


def glance(home: Home, project: str, since: int | None) -> Glance | None:
    from storage.glance import glance as asked

    return by_sequence(home, "glance", lambda: asked(home, project, since=since), project, since)


def waiting(home: Home) -> dict[str, int]:
    """What no commit has taken in yet, as it is now."""
    from storage.overview import taken_in
    from storage.overview import waiting as asked

    return asked(home, taken=by_sequence(home, "taken", lambda: taken_in(home)))


def projects(home: Home) -> list[str]:
    """Every project that a command named, that serves, or that has traces."""
    from app.named import projects as asked
    from app.named import without_traces

    return by_sequence(home, "projects", lambda: asked(home), tuple(without_traces(home)))


def server(home: Home) -> Server | None:
    """As it was within the last seconds."""
    found: Server | None = _server_keeper()(str(home.root))
    return found


@functools.cache
def _keeper() -> Callable[..., Any]:
    import streamlit as st

    @st.cache_resource(show_spinner="Reading the store", max_entries=256)
    def kept(root: str, at: int, name: str, key: tuple[Any, ...], _ask: Callable[[], Any]) -> Any:
        return _ask()

    return kept


@functools.cache
def _server_keeper() -> Callable[[str], Any]:
    import streamlit as st

    @st.cache_resource(ttl=3, show_spinner=False)
    def kept(root: str) -> Any:
        from app.views.overview_data import server as asked

        return asked(Home(Path(root)))

    return kept


@functools.cache
def _known() -> dict[Path, tuple[str, int]]:
    return {}
