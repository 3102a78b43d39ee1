"""Comparing two answers to the same problem or prompt: blind, in random order."""

from app.views import kept, safe_html, traces_html
from app.views.frame import Shown, empty
from app.views.review_data import blind, compare
from app.views.review_state import State, current, forward, say, skip, take_next
from app.views.traces_data import detail_of
from flywheel.records import Choice, Trace, last_answer, model_spans
from storage import reviews
from storage.browse import Detail
from storage.reviews import Pair

_TRIES = 20


def comparing(here: Shown, state: State) -> None:
    import streamlit as st

    st.caption(
        "Two different answers to one problem or prompt, in random order; who gave them is not "
        "shown. First come the newest, and of each problem those whose rewards are closest."
    )
    found = _pair(here, state)
    if found is None:
        if state.passed:
            empty("Nothing is left that you have not seen in this session, or others have it.")
            st.button("Show again what I skipped", on_click=state.passed.clear)
        else:
            empty("No two different answers to one problem or prompt yet. A turn samples several "
                  "of each problem: `flywheel turn PROJECT`.")  # fmt: skip
        return
    pair, first, second = found
    item, token = _name(pair), state.token
    call = next((span.call for span in reversed(model_spans(first)) if span.call), None)
    if call is not None:
        st.html(safe_html.wrapped(traces_html.conversation(call, None)))
    for column, label, trace in zip(st.columns(2), "AB", (first, second), strict=True):
        with column:
            answer: Choice | None = last_answer(trace)
            shown = traces_html.turn(answer.message, answer=True) if answer else "no answer"
            st.markdown(f"**{label}**")
            st.html(safe_html.wrapped(shown))
    with st.container(horizontal=True):
        for label, better, key in (
            ("A is better", first.id, "1"), ("B is better", second.id, "2"),
            ("Equally good or bad", None, "0"),
        ):  # fmt: skip
            st.button(label, key=f"review:{key}:{token}", shortcut=key, on_click=_say,
                      args=(token, pair, better, item))  # fmt: skip
        st.button("Skip", key=f"review:skip:{token}", shortcut="s", on_click=skip,
                  args=(token, (item,)))  # fmt: skip


def _say(token: str, pair: Pair, better: str | None, item: str) -> None:
    from app.views.frame import shown

    state = current()
    records = compare(shown().project, pair, better, by=state.person, token=token)
    say(token, records, (item,), "compared two answers")


def _pair(here: Shown, state: State) -> tuple[Pair, Trace, Trace] | None:
    """The pair to be shown, and its traces in the order to be shown in."""
    me = state.person
    for _ in range(_TRIES):
        known = {_name(one): one for one in kept.by_sequence(
            here.home, "pairs", lambda: reviews.pairs(here.home, here.project, me=me),
            here.project, me,
        )}  # fmt: skip
        if state.item is not None and state.item not in known:
            state.item = None
        item = take_next(state, here, list(known))
        if item is None:
            return None
        pair = known[item]
        shown = blind(pair, state.token)
        traces = [_trace(here, one) for one in shown]
        if traces[0] is not None and traces[1] is not None:
            return pair, traces[0].trace, traces[1].trace
        forward(state, (item,))
    return None


def _trace(here: Shown, trace_id: str) -> Detail | None:
    return detail_of(here.home, kept.sequence(here.home), trace_id)


def _name(pair: Pair) -> str:
    return f"{pair.first}+{pair.second}"
