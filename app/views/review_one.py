"""Judging one answer: accept, reject, correct in place, tag, comment, skip."""

from typing import Any

from app.views import kept, safe_html, traces_html
from app.views.frame import Shown, allowed, empty, link, plain
from app.views.review_data import Offered, judge, offered, remarks
from app.views.review_reading import labels_of, reading
from app.views.review_state import State, current, forward, say, skip, take_next
from app.views.traces_data import detail_of, lately
from flywheel.records import Choice, ModelCall, Trace, last_answer, model_spans
from flywheel.reviews import GOLD, NAME, verdict_of
from storage import review_queue
from storage.browse import Detail

_WHICH = {
    "new": "Still to review", "second": "A second opinion", "all": "All but mine",
    "disputed": "To settle",
}  # fmt: skip
_TRIES = 20
_FOCUS = """<script>
(() => {
  let left = 40;
  const focus = () => {
    const field = document.querySelector(".st-key-review_correction textarea");
    if (field) field.focus(); else if (left--) setTimeout(focus, 50);
  };
  focus();
})();
</script>"""
"""Of ours, without a word from outside: E goes straight to the text."""


def judging(here: Shown, state: State) -> None:
    import streamlit as st

    which, recorded = _choose(allowed(here.person, "promoter"))
    settles = which == "disputed"
    asked = _asked(state)
    found = _item(here, state, asked, which, recorded)
    if found is None:
        _nothing(here, state)
        return
    trace = found.trace
    call, choice = _last(trace)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        st.html(safe_html.wrapped(traces_html.conversation(call, choice)))
        link("traces", "The whole trace", trace=trace.id)
    answer = choice.message.text if choice else ""
    with right:
        _act(here, state, found, answer, bool(choice and choice.message.tool_calls), settles)
        with st.expander("What is known of it"):
            _known(found, settles)


def _choose(may_settle: bool) -> tuple[review_queue.Which, bool]:
    import streamlit as st

    offered = [one for one in _WHICH if may_settle or one != "disputed"]
    with st.container(horizontal=True, vertical_alignment="center"):
        which: Any = st.segmented_control(
            "Which", offered, default="new", format_func=_WHICH.__getitem__, required=True,
            key="review:which", label_visibility="collapsed", persist_state="session",
        )  # fmt: skip
        own = st.toggle("Also rollouts and evaluations", key="review:own", persist_state="session")
    st.caption(f"Order: {review_queue.ORDER}.")
    return which, not own


def _asked(state: State) -> str | None:
    """The trace that a link asked for, once."""
    import streamlit as st

    asked = st.query_params.get("trace", "")[:200]
    if asked and st.session_state.get("review:asked") != asked:
        st.session_state["review:asked"] = asked
        state.item = None
        state.passed.discard(asked)
        return asked
    return None


def _item(
    here: Shown, state: State, asked: str | None, which: review_queue.Which, recorded: bool
) -> Detail | None:
    for _ in range(_TRIES):
        candidates = [asked] if asked else _queue(here, state, which, recorded)
        item = take_next(state, here, candidates, again=asked is not None)
        if item is None and asked is None:
            return None
        found = _detail(here, item) if item is not None else None
        if found is not None and found.trace.project == here.project:
            return found
        gone = item or asked or ""
        state.told = ("lost", f"Trace {gone} is not here any more, or somebody else reviews it.")
        forward(state, (gone,))
        asked = None
    return None


def _detail(here: Shown, item: str) -> Detail | None:
    return detail_of(here.home, kept.sequence(here.home), item)


def _queue(here: Shown, state: State, which: review_queue.Which, recorded: bool) -> list[str]:
    me, limit = state.person, 200 + 100 * (len(state.passed) // 100)
    found: list[str] = lately(
        here.home, kept.sequence(here.home),
        lambda: review_queue.queue(here.home, here.project, me=me, which=which, recorded=recorded,
                                   limit=limit, section=labels_of(here.folder)),
        "queue", here.project, me, which, recorded, limit,
    )  # fmt: skip
    return found


def _last(trace: Trace) -> tuple[ModelCall, Choice | None]:
    calls = [span.call for span in model_spans(trace) if span.call]
    answered = next((one for one in reversed(calls) if one.choices), None)
    call = answered or (calls[-1] if calls else ModelCall(input=()))
    return call, last_answer(trace)


def _act(
    here: Shown, state: State, found: Detail, answer: str, calls_tools: bool, settles: bool
) -> None:
    import streamlit as st

    trace_id, token = found.trace.id, state.token
    accepted = offered(*reading(here), answer) if answer else None
    with st.container(horizontal=True):
        st.button("Accept", on_click=_verdict, args=(token, found, "accepted", accepted, settles),
                  shortcut="a", type="primary", key=f"review:accept:{token}")  # fmt: skip
        st.button("Reject", on_click=_verdict, args=(token, found, "rejected", None, settles),
                  shortcut="x", key=f"review:reject:{token}")  # fmt: skip
        st.button("Correct", on_click=_edit, shortcut="e", key=f"review:edit:{token}")
        st.button("Skip", on_click=skip, args=(token, (trace_id,)), shortcut="s",
                  key=f"review:skip:{token}")  # fmt: skip
    _says(accepted)
    if calls_tools:
        st.caption("It calls tools: accepting it judges the calls too, and states no text.")
    st.text_input("Comment", key=f"review:comment:{token}", max_chars=4000)
    st.multiselect("Tags", _tags(found), key=f"review:tags:{token}", accept_new_options=True,
                   max_selections=20)  # fmt: skip
    st.button("Only save comment and tags", on_click=_remark, args=(token, found),
              key=f"review:remark:{token}")  # fmt: skip
    if not state.editing:
        return
    with st.container(key="review_correction"), st.form(f"review:form:{token}"):
        st.text_area("The answer as it should have been", answer, height=180,
                     key=f"review:text:{token}", max_chars=100_000)  # fmt: skip
        st.form_submit_button("Save correction (Ctrl+Enter)", on_click=_correct,
                              args=(token, found, settles), type="primary")  # fmt: skip
    st.html(_FOCUS, unsafe_allow_javascript=True)


def _says(accepted: Offered | None) -> None:
    import streamlit as st

    if accepted is None:
        return
    if accepted.note:
        st.caption(plain(accepted.note[:1].upper() + accepted.note[1:]) + ".")
    else:
        st.caption("Accepting makes this answer its problem's truth.")


def _edit() -> None:
    current().editing = True


def _verdict(
    token: str, found: Detail, verdict: Any, answer: Offered | None, settles: bool
) -> None:
    import streamlit as st

    state = current()
    comment = st.session_state.get(f"review:comment:{token}", "")
    records = judge(
        found.trace.project, found.trace.id, verdict, answer.value if answer else None,
        by=state.person, token=token, after=_after(found, state.person), comment=comment,
        tags=st.session_state.get(f"review:tags:{token}", ()), settles=settles,
    )  # fmt: skip
    say(token, records, (found.trace.id,), f"{verdict} {found.trace.id[:12]}")


def _correct(token: str, found: Detail, settles: bool) -> None:
    import streamlit as st

    from app.views.frame import shown

    answer = st.session_state.get(f"review:text:{token}", "")
    if not answer.strip():
        current().told = ("failed", "A correction is the whole answer; this one is empty.")
        return
    _verdict(token, found, "corrected", offered(*reading(shown()), answer), settles)


def _remark(token: str, found: Detail) -> None:
    import streamlit as st

    state = current()
    records = remarks(
        found.trace.project, found.trace.id, by=state.person, token=token,
        after=_after(found, state.person),
        comment=st.session_state.get(f"review:comment:{token}", ""),
        tags=st.session_state.get(f"review:tags:{token}", ()),
    )  # fmt: skip
    if not records:
        state.told = ("failed", "Neither a comment nor a tag was given.")
        return
    say(token, records, (found.trace.id,), f"remarked on {found.trace.id[:12]}")


def _after(found: Detail, person: str) -> int:
    """When the person last said something of it."""
    return max((one.at for one in found.feedback if one.by == person), default=0)


def _tags(found: Detail) -> list[str]:
    said = [one.name.removeprefix("tag:") for one in found.feedback
            if one.name.startswith("tag:") and one.value]  # fmt: skip
    return list(dict.fromkeys([*said, "wrong", "unclear", "unsafe", "format", "tone"]))


def _known(found: Detail, settles: bool) -> None:
    """What others may have judged is shown to who settles: a second opinion is one's own. What is
    known of a gold item is shown to nobody."""
    import streamlit as st

    graded = [one for one in found.grades if settles or one.reward != NAME]
    said = [one for one in found.feedback
            if one.name != GOLD and (settles or verdict_of(one) is None)]  # fmt: skip
    if graded:
        st.html(safe_html.wrapped(traces_html.grades(graded)))
    if said:
        st.html(safe_html.wrapped(traces_html.feedback(said)))
    if not graded and not said:
        st.caption("No grade and no feedback yet.")


def _nothing(here: Shown, state: State) -> None:
    import streamlit as st

    if state.passed:
        empty("Nothing is left that you have not seen in this session, or others have it.")
        st.button("Show again what I skipped", on_click=state.passed.clear)
        return
    empty("Nothing to review here. Recorded answers come by `flywheel serve`, `flywheel import` "
          "and `flywheel ingest`; other filters above may show some.")  # fmt: skip
