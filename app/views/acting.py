"""Buttons that act: a question first, then once, however often it is clicked or rerun.

The question carries a one-time token (`flywheel.once`); the role is looked up again when it is
spent, not when the button was drawn. What was done, by whom and how it ended is in the home.
"""

from collections.abc import Callable
from typing import Any

from app.actions import Action, Ended, act_once, actions, may, start_command
from app.people import allowed
from app.views.frame import plain, shown
from flywheel import once

__all__ = ["Action", "actions", "confirm", "start_command"]


def confirm(
    key: str, label: str, *, question: str, role: str, act: Callable[[], str], **button: Any
) -> None:
    """Draws the button `label`, after a click `question`, after a yes `act`, whose words it shows.

    Args:
        key: of this button on this page, and of this state of what it acts on.
        question: plain text.
        role: who may; others see the button disabled, and their call is refused.
        act: runs at most once a confirmation; calls nothing of Streamlit.
        button: more of `st.button`'s own, such as `shortcut` or `type`.
    """
    import streamlit as st

    state, here = f"confirm:{key}", shown()
    asked: str | None = st.session_state.get(f"{state}:token")
    if asked is None:
        st.button(
            label, key=f"{state}:ask", on_click=_ask, args=(state,),
            disabled=not allowed(here.person, role),
            help=None if allowed(here.person, role) else f"needs the role {role}",
            **button,
        )  # fmt: skip
        _tell(st.session_state.get(f"{state}:ended"))
        return
    with st.container(border=True):
        st.markdown(plain(question))
        with st.container(horizontal=True):
            st.button(
                f"Yes, {label[:1].lower()}{label[1:]}", key=f"{state}:yes:{asked}", type="primary",
                on_click=_act, args=(state, asked, label, role, act),
            )  # fmt: skip
            st.button("No", key=f"{state}:no:{asked}", on_click=_forget, args=(state,))


def _ask(state: str) -> None:
    import streamlit as st

    st.session_state[f"{state}:token"] = once.issue()
    st.session_state.pop(f"{state}:ended", None)


def _forget(state: str) -> None:
    import streamlit as st

    st.session_state.pop(f"{state}:token", None)


def _act(state: str, token: str, label: str, role: str, act: Callable[[], str]) -> None:
    import streamlit as st

    here = shown()

    def checked() -> str:
        may(here.home, here.person, role, local=here.local)
        return act()

    ended = act_once(here.home, here.person, token, label, checked, here.project)
    _forget(state)
    if ended is not None:  # else a second click on the same yes: the first one's words stay
        st.session_state[f"{state}:ended"] = ended


def _tell(ended: Ended | None) -> None:
    import streamlit as st

    if ended is None:
        return
    show = {"done": st.success, "refused": st.warning}.get(ended.state, st.error)
    show(plain(ended.words))
