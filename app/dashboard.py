"""The dashboard's page: signs in, chooses the project, and shows the view that was asked for.

Streamlit runs this file at every rerun (`flywheel dashboard` starts it). Views are imported when
they are shown first; each has one public `view()`.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.dashboard_server import LOOPBACK
from app.people import Person, file_of, people, person_of, proven_name
from app.views import frame
from flywheel.errors import FlywheelError, UsageError
from flywheel.home import Home
from flywheel.known import known
from flywheel.settings import load


@dataclass(frozen=True)
class View:
    module: str
    title: str
    icon: str


VIEWS = (
    View("overview", "Overview", ":material/home:"),
    View("traces", "Traces", ":material/forum:"),
    View("review", "Review", ":material/rate_review:"),
    View("datasets", "Datasets", ":material/dataset:"),
    View("runs", "Runs", ":material/show_chart:"),
    View("deployments", "Deployments", ":material/rocket_launch:"),
)
"""The pages, in order; each is `app.views.<module>.view` under /<module>."""


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><circle cx="12" cy="12" r="9" '
    'fill="none" stroke="#2a9d8f" stroke-width="4" stroke-dasharray="44 13"/></svg>'
)
"""Drawn here: an icon by name would be fetched from outside."""
_STYLE = "<style>.stMainBlockContainer { padding: 3.75rem 2rem 4rem }</style>"


def page() -> None:
    st.set_page_config(page_title="Flywheel", page_icon="🎡", layout="wide")
    st.html(_STYLE)
    home = load().at()
    _only_where_allowed()
    there = [one for one in VIEWS if importlib.util.find_spec(f"app.views.{one.module}")]
    pages = {
        one.module: st.Page(
            _opens(one), title=one.title, icon=one.icon, url_path=one.module, default=number == 0
        )
        for number, one in enumerate(there)
    }
    frame.know(pages)
    chosen = st.navigation(list(pages.values()))
    with st.sidebar:
        person, local = _signed_in(home)
        project = _project(home)
    folder = known(home).get(project)
    frame.show(frame.Shown(home, project, folder, person, local))
    chosen.run()


def _opens(view: View) -> Callable[[], None]:
    def shown() -> None:
        try:
            importlib.import_module(f"app.views.{view.module}").view()
        except FlywheelError as error:
            st.error(frame.plain(str(error)))

    shown.__name__ = view.module
    return shown


def _only_where_allowed() -> None:
    """Names that anybody may type are for this machine only, whoever started Streamlit and how."""
    address = st.get_option("server.address")
    if _configured() or not st.runtime.exists() or address in LOOPBACK:
        return
    st.error("This dashboard listens beyond this machine without a sign-in: it shows nothing.")
    st.stop()


def _configured() -> bool:
    """Whether Streamlit's own sign-in ([auth] in its secrets) is there."""
    return st.secrets.load_if_toml_exists() and "auth" in st.secrets


def _signed_in(home: Home) -> tuple[Person, bool]:
    """Who looks, and whether the name was only typed."""
    local = not _configured()
    try:
        listed = people(home) is not None
        name = _typed() if local else _proven()
        person = person_of(home, name, local=local)
    except UsageError as error:
        st.error(frame.plain(str(error)))
        return Person("nobody", "viewer"), local
    if listed:
        st.caption(f"Role: {person.role}")
    elif local:
        st.caption(
            f"Everybody on this machine may do everything; {frame.plain(file_of(home).name)} in "
            "the home gives roles."
        )
    else:
        st.caption("Role: viewer, until people.toml in the home gives more.")
    return person, local


def _typed() -> str:
    import getpass

    if "name" not in st.session_state:
        st.session_state["name"] = st.query_params.get("as", getpass.getuser())[:80]
    name = st.text_input("Your name", key="name", max_chars=80, help="Records carry it.")
    return (name or "").strip() or "somebody"


def _proven() -> str:
    user: Any = st.user
    if not user.is_logged_in:
        st.button("Sign in", on_click=st.login, type="primary")
        st.stop()
    st.button("Sign out", on_click=st.logout)
    name = proven_name(user)
    st.text(name)
    return name


def _project(home: Home) -> str:
    from app.views.kept import projects

    try:
        names = projects(home)
    except FlywheelError as error:  # a damaged store, or one of another version
        st.error(frame.plain(str(error)))
        st.stop()
    if not names:
        return ""
    asked = st.query_params.get("project")
    if "project" not in st.session_state or st.session_state["project"] not in names:
        st.session_state["project"] = asked if asked in names else names[0]
    chosen = st.selectbox("Project", names, key="project")
    st.query_params["project"] = chosen
    return str(chosen)


page()
