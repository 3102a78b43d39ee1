"""Review: one answer after the other is judged, or two are compared, from the keyboard.

What is shown is leased to this page, so that nobody else gets it; what is said goes through the
inbox under a one-time token and counts from the next turn on.
"""

from app.views import kept
from app.views.frame import Shown, allowed, empty, plain, shown
from app.views.review_state import State, begin, turn_to, undo
from app.views.words import heading, many
from storage import reviews

MODES = ("Judge one answer", "Compare two answers")


def view() -> None:
    import streamlit as st

    here = shown()
    if not here.project:
        empty("Nothing to review yet. `flywheel serve PROJECT` records answers, `flywheel import "
              "FILE` brings them in.")  # fmt: skip
        return
    heading("Review", here.project)
    if not allowed(here.person, "reviewer"):
        st.info(
            f"{plain(here.person.name)} may look, not review: people.toml in the home names "
            "reviewers."
        )
        return
    state = begin(here)
    _progress(here, state)
    mode = st.segmented_control("What to do", MODES, default=MODES[0], key="review:mode",
                                label_visibility="collapsed", required=True)  # fmt: skip
    told = st.container()
    turn_to(state, mode)
    if mode == MODES[1]:
        from app.views.review_pair import comparing

        comparing(here, state)
    else:
        from app.views.review_one import judging

        judging(here, state)
    with told:
        _tell(state)


def _progress(here: Shown, state: State) -> None:
    import streamlit as st

    me = here.person.name
    found = kept.by_sequence(
        here.home, "review progress", lambda: reviews.progress(here.home, here.project, me),
        here.project, me,
    )  # fmt: skip
    columns = st.columns(4)
    share = f"{found.reviewed / found.answers:.1%}" if found.answers else "none yet"
    columns[0].metric("Answers reviewed", f"{found.reviewed:,} of {found.answers:,}", share,
                      delta_color="off", delta_arrow="off")  # fmt: skip
    columns[1].metric("By you", f"{found.mine:,}", f"{len(state.done)} in this session",
                      delta_color="off", delta_arrow="off")  # fmt: skip
    _agreement(columns[2], "You agree with the environment", found.with_reward)
    _agreement(columns[3], "You agree with other reviewers", found.with_others)
    if state.done:
        last = state.done[-1]
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button("Undo", key=f"review:undo:{last.token}", on_click=undo, shortcut="u",
                      icon=":material/undo:")  # fmt: skip
            st.caption(f"Last: {plain(last.words)}")


def _agreement(column: object, label: str, found: reviews.Agreement) -> None:
    value = "unknown" if found.share is None else f"{found.share:.0%}"
    about = f"over {many(found.common, 'answer')}"
    if found.share is None:
        about = f"{found.common} of the {reviews.FEW} needed"
    column.metric(label, value, about, delta_color="off", delta_arrow="off")  # type: ignore[attr-defined]


def _tell(state: State) -> None:
    import streamlit as st

    if state.told:
        kind, words = state.told
        {"done": st.success, "lost": st.warning}.get(kind, st.error)(plain(words))
        state.told = None
