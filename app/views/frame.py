"""What every page stands in: who looks, at which home and project, and words for an empty page.

`app/dashboard.py` calls `show` once a rerun; each page's `view()` begins with `shown()`. Invariant:
text that came from outside reaches Markdown only through `plain`.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.people import Person, Role, allowed
from flywheel.home import Home

__all__ = [
    "Person",
    "Role",
    "Shown",
    "allowed",
    "empty",
    "know",
    "link",
    "plain",
    "show",
    "shown",
    "when",
]

_KEY, _PAGES = "flywheel_shown", "flywheel_pages"
_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~$:&])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Shown:
    home: Home
    project: str
    """ "" = there is none yet."""
    folder: Path | None
    """The project's, where a command named it on this machine; None = not known."""
    person: Person
    local: bool = True
    """The person's name was typed on this machine; False = a sign-in proved it."""


def show(what: Shown) -> None:
    import streamlit as st

    st.session_state[_KEY] = what


def shown() -> Shown:
    import streamlit as st

    found: Shown = st.session_state[_KEY]
    return found


def know(pages: dict[str, Any]) -> None:
    """The pages that `link` may lead to, by their view's module."""
    import streamlit as st

    st.session_state[_PAGES] = pages


def link(view: str, label: str, **query: str) -> None:
    """A link to another page of the dashboard, for the same project; plain text where that page
    is not there. `label` is Markdown of ours."""
    import streamlit as st

    page = st.session_state.get(_PAGES, {}).get(view)
    if page is None:
        st.caption(label)
        return
    asked = {"project": shown().project, **query}
    st.page_link(page, label=label, query_params={k: v for k, v in asked.items() if v})


def empty(what_to_do: str) -> None:
    """A page that has nothing to show says what to do next. `what_to_do` is Markdown of ours."""
    import streamlit as st

    st.info(what_to_do, icon=":material/explore:")


def plain(text: str) -> str:
    """`text` so that Markdown shows it as it is, control and direction characters made visible."""
    text = _CONTROL.sub(lambda one: f"\\u{ord(one[0]):04x}", text)
    return _MARKS.sub(r"\\\1", text)


def when(at: int | None) -> str:
    """Nanoseconds since 1970 as people read them, UTC."""
    if at is None:
        return "unknown"
    try:
        return datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(at)
