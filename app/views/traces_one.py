"""One trace in full: conversation, spans, grades, feedback, tokens, lineage, raw bytes.

It may have been erased since it was listed; then the page says so.
"""

import functools
from typing import Any

import msgspec

from app.views import kept, safe_html, traces_data, traces_html
from app.views.frame import Shown, link, plain, when
from app.views.words import many, tokens
from flywheel.errors import FlywheelError
from flywheel.records import Choice, Span, Trace, model_spans
from storage.browse import Detail

TABS = ("Conversation", "Spans", "Tokens", "Lineage", "Raw")
_RAW_SHOWN = 20_000
_BRANCHES_SHOWN = 5


def one(here: Shown, trace_id: str) -> None:
    import streamlit as st

    trace_id = trace_id[:200]
    _ways(trace_id)
    found = traces_data.detail_of(here.home, kept.sequence(here.home), trace_id)
    if found is None:
        st.warning(
            f"There is no trace {plain(trace_id)} here: it was erased, or is of another home."
        )
        return
    _head(here, found)
    words = st.session_state.get("traces:text", "").split()
    span, number, choice = _call(st.container(), found.trace)
    asked = st.query_params.get("tab")
    tabs = dict(zip(TABS, st.tabs(
        list(TABS), default=asked if asked in TABS else TABS[0], on_change="rerun",
        key=f"trace:tabs:{asked}",
    ), strict=True))  # fmt: skip
    # Only what is looked at is read and drawn.
    for name, tab in tabs.items():
        if not tab.open:
            continue
        with tab:
            if name == "Conversation":
                _conversation(found, span, choice, words)
            elif name == "Spans":
                rows = traces_data.tree(found.trace)
                st.html(safe_html.wrapped(traces_html.tree(rows, len(found.trace.spans))))
            elif name == "Tokens":
                _tokens(here, span, number)
            elif name == "Lineage":
                _lineage(here, found)
            else:
                _raw(here, found)


def _ways(trace_id: str) -> None:
    """Back, and along the list that it was opened from."""
    import streamlit as st

    order: list[str] = st.session_state.get("traces:order", [])
    place = order.index(trace_id) if trace_id in order else None
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Back to the list", on_click=_go, args=(None,), shortcut="Esc",
                  icon=":material/arrow_back:", key="trace:back")  # fmt: skip
        for label, step, key in (("Previous", -1, "k"), ("Next", 1, "j")):
            to = -1 if place is None else place + step
            there = 0 <= to < len(order)
            st.button(label, on_click=_go, args=(order[to] if there else trace_id,),
                      disabled=not there, shortcut=key, key=f"trace:{label}")  # fmt: skip


def _go(trace_id: str | None) -> None:
    import streamlit as st

    if trace_id is None:
        st.query_params.pop("trace", None)
    else:
        st.query_params["trace"] = trace_id


def _head(here: Shown, found: Detail) -> None:
    import streamlit as st

    trace = found.trace
    calls = model_spans(trace)
    call = calls[-1].call if calls else None
    starts = [span.start for span in trace.spans if span.start is not None]
    st.subheader("Trace", anchor=False)
    st.code(trace.id, language=None)
    if trace.project != here.project:
        st.warning(f"It is of the project {plain(trace.project)}.")
    if found.copy_of:
        st.info(f"A copy of {plain(found.copy_of)} under other ids; that one is counted.")
    facts = (
        ("started", when(min(starts, default=None))),
        ("origin", f"{trace.origin}, {trace.source}"),
        ("deployment", (call.deployment or call.response_model or call.model) if call else None),
        ("user", trace.user),
        ("conversation", trace.conversation),
        ("tokens in, out", _used(trace)),
        ("fidelity", (trace.fidelity or "unknown").replace("_", " ")),
        ("because", "; ".join(trace.fidelity_reasons) or "nothing is missing"),
    )
    st.html(safe_html.wrapped(safe_html.table([name for name, _ in facts],
                                              [[value for _, value in facts]])))  # fmt: skip
    with st.container(horizontal=True):
        link("review", "Review it", trace=trace.id)
        if found.copies:
            st.caption(f"{many(len(found.copies), 'copy').replace('copys', 'copies')} of it came.")
        if found.follows:
            link("traces", "What it goes on from", trace=found.follows)
        for number, after in enumerate(found.followed_by[:_BRANCHES_SHOWN], 1):
            several = f", branch {number}" if len(found.followed_by) > 1 else ""
            link("traces", f"What goes on from it{several}", trace=after)


def _used(trace: Trace) -> str:
    sums: list[str] = []
    for name in ("input_tokens", "output_tokens"):
        each = [getattr(span.call.usage, name) for span in trace.spans if span.call]
        known = each and all(one is not None for one in each)
        sums.append(tokens(sum(each)) if known else "unknown")
    return ", ".join(sums)


def _call(place: Any, trace: Trace) -> tuple[Span | None, int, Choice | None]:
    """The model call and the answer that are looked at."""
    import streamlit as st

    calls = model_spans(trace)
    if not calls:
        return None, 0, None
    with place, st.container(horizontal=True):
        # Where the last call failed, the last answer is what a person wants to see first.
        number = max((k for k, one in enumerate(calls) if one.call and one.call.choices),
                     default=len(calls) - 1)  # fmt: skip
        if len(calls) > 1:
            said = st.number_input(f"Model call, of {len(calls):,}", 1, len(calls), number + 1,
                                   key=f"trace:call:{trace.id}")  # fmt: skip
            number = int(said) - 1
        span = calls[number]
        choices = span.call.choices if span.call else ()
        which = 0
        if len(choices) > 1:
            which = int(st.number_input(f"Answer, of {len(choices):,}", 1, len(choices), 1,
                                        key=f"trace:choice:{span.id}")) - 1  # fmt: skip
    return span, which, choices[which] if choices else None


def _conversation(
    found: Detail, span: Span | None, choice: Choice | None, words: list[str]
) -> None:
    import streamlit as st

    if span is None or span.call is None:
        st.caption("No model call was recorded in it; its spans may say more.")
    else:
        pieces = [traces_html.conversation(span.call, choice, words)]
        if span.error:
            pieces.append(safe_html.said(f"The call failed: {span.error}"))
        elif choice is None:
            pieces.append('<p class="none">No answer was recorded.</p>')
        st.html(safe_html.wrapped(*pieces))
    st.markdown("**Grades**")
    if found.grades:
        st.html(safe_html.wrapped(traces_html.grades(found.grades)))
    else:
        st.caption("Not graded yet: `flywheel grade PROJECT`, or the next turn, does it.")
    st.markdown("**Feedback**")
    if found.feedback:
        st.html(safe_html.wrapped(traces_html.feedback(found.feedback)))
    else:
        st.caption("Nobody said anything of it.")


def _tokens(here: Shown, span: Span | None, number: int) -> None:
    import streamlit as st

    from flywheel.settings import load

    choices = span.call.choices if span and span.call else ()
    of = choices[number].tokens if number < len(choices) else None
    if of is None or span is None:
        why = span.attributes.get("tokens") if span else None
        st.caption(f"The sampled tokens are not known: {plain(str(why or 'none were recorded'))}.")
        return
    base = traces_data.base_of(here.folder, load().models)
    pieces, reason = traces_data.pieces(of, base)
    st.caption(
        f"{len(of.prompt_ids):,} prompt tokens, {len(of.completion_ids):,} sampled by "
        f"{plain(', '.join(of.policy_versions) or 'an unknown version')}. The redder, the less "
        "likely; hover for the numbers."
    )
    if reason:
        st.caption(plain(reason))
    st.html(safe_html.wrapped(traces_html.tokens(of, pieces)))


def _lineage(here: Shown, found: Detail) -> None:
    import streamlit as st

    from storage.lineage import lineage

    links = kept.by_sequence(
        here.home, "lineage", lambda: lineage(here.home, found.trace.id), found.trace.id
    )
    used = [one for one in links if one.id != found.trace.id]
    if not used:
        st.caption("Nothing was made of it yet: no problem, dataset, run or deployment.")
        return
    st.html(safe_html.wrapped(safe_html.table(
        ("what", "id", "note"), [(one.kind, one.id, one.note) for one in used[:200]]
    )))  # fmt: skip
    for one in used[:20]:
        if one.kind == "dataset":
            link("datasets", f"Open dataset {plain(one.id[:12])}", dataset=one.id)


def _raw(here: Shown, found: Detail) -> None:
    import streamlit as st

    record = msgspec.json.format(msgspec.json.encode(found.trace, enc_hook=str))
    names = ["the record as it stands here", *found.raws[:50]]
    chosen = st.selectbox("Bytes", names, key=f"trace:raw:{found.trace.id}",
                          format_func=lambda one: one[:80])  # fmt: skip
    try:
        data = record if chosen == names[0] else traces_data.raw(here.home, chosen)
    except FlywheelError as error:
        st.warning(plain(str(error)))
        return
    shown = data[:_RAW_SHOWN].decode("utf-8", "replace")
    st.download_button(
        f"Download {len(data):,} bytes", functools.partial(bytes, data), f"{found.trace.id}.txt",
        "application/octet-stream", on_click="ignore", icon=":material/download:",
    )  # fmt: skip
    st.html(safe_html.wrapped(safe_html.said(shown, "code")))
    if len(data) > _RAW_SHOWN:
        st.caption(f"{len(data) - _RAW_SHOWN:,} more bytes are in the download.")
