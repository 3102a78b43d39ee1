"""Traces: filters that combine, full-text search, and one trace in full (?trace=…).

The list is a page of cards; nothing here reads more than one page or one trace.
"""

from typing import Any

from app.views import kept, traces_data
from app.views.frame import Shown, empty, plain, shown, when
from app.views.traces_filters import RECORDED, search_box, short
from app.views.traces_filters import filters as filters_of
from app.views.words import heading, tokens
from storage import browse


def view() -> None:
    import streamlit as st

    here = shown()
    if not here.project:
        empty("No traces yet. `flywheel serve PROJECT` records each request, `flywheel import "
              "FILE` brings files in, `flywheel demo` shows the whole wheel.")  # fmt: skip
        return
    if trace_id := st.query_params.get("trace"):
        from app.views.traces_one import one

        one(here, trace_id)
        return
    heading("Traces", here.project)
    text = search_box()
    filters = filters_of(here)
    _list(here, filters, text)


def _list(here: Shown, filters: browse.Filters, text: str) -> None:
    import streamlit as st

    number = _page_number(filters, text)
    standing = kept.by_sequence(
        here.home, "index", lambda: traces_data.index(here.home, here.project), here.project,
        st.session_state.setdefault("traces:looked", 0),
    )  # fmt: skip
    if standing.waiting:
        standing = traces_data.index(here.home, here.project)
    found = kept.by_sequence(
        here.home, "traces",
        lambda: traces_data.listed(here.home, here.project, filters, text, number),
        here.project, repr(filters), text, number, standing.indexed,
    )  # fmt: skip
    if not found.total:
        _nothing(standing.waiting, text, filters)
        return
    first = number * traces_data.PER_PAGE
    told = f"{first + 1:,} to {first + len(found.cards):,} of {found.total:,}"
    if found.many:
        told += "; of the newest matches (there are more: narrow the search)"
    if text and standing.waiting:
        told += f"; {standing.waiting:,} newer traces are not searchable yet: being indexed"
    _pager(number, found.total, told)
    table = [_line(card, found.previews) for card in found.cards]
    chosen = st.dataframe(
        table, hide_index=True, placeholder="–", on_select="rerun", selection_mode="single-row",
        key=f"traces:list:{number}:{hash((repr(filters), text))}",
        height=min(38 * (len(table) + 1), 900),
        column_config=_columns(), alt="Traces, newest first",
    )  # fmt: skip
    rows = chosen["selection"]["rows"]
    if rows and rows[0] < len(found.cards):
        st.session_state["traces:order"] = [card.trace_id for card in found.cards]
        st.query_params["trace"] = found.cards[rows[0]].trace_id
        st.rerun()
    st.caption("Choose a row to open it. Keys: → next page, ← previous page.")


def _line(card: browse.Card, previews: Any) -> dict[str, Any]:
    said = previews.get(card.trace_id)
    marks = [
        "failed" if card.failed else "",
        {1.0: "accepted", 0.0: "rejected"}.get(card.verdict, "disputed")
        if card.verdict is not None else "",
    ]  # fmt: skip
    return {
        "started": when(card.started),
        "reward": card.reward,
        "asked": short(said.ask, 160) if said else "…",
        "answered": short(said.answer, 160) if said else "…",
        "state": ", ".join(filter(None, marks)),
        "feedback": "" if not card.said else f"{card.said}" + _liked(card.liked),
        "deployment": short(card.deployment or card.model or "unknown"),
        "ended by": short(card.finish or "unknown"),
        "tokens": tokens(card.output_tokens),
        "fidelity": card.fidelity.replace("_", " "),
        "origin": card.origin,
        "user": short(card.user_id or ""),
    }


def _liked(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%} yes)"


def _columns() -> dict[str, Any]:
    import streamlit as st

    return {
        "asked": st.column_config.TextColumn(width=300),
        "answered": st.column_config.TextColumn(width=300),
        "reward": st.column_config.NumberColumn(
            format="%.2f", help="–: not graded, or a reward could not be given"
        ),
        "feedback": st.column_config.TextColumn(help="How often people or systems spoke of it"),
    }


def _pager(number: int, total: int, told: str) -> None:
    import streamlit as st

    last = min(total, browse.DEEPEST) - 1
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Newer", key="traces:back", on_click=_turn, args=(-1,), disabled=number == 0,
                  icon=":material/chevron_left:", shortcut="Left")  # fmt: skip
        st.button("Older", key="traces:on", on_click=_turn, args=(1,),
                  disabled=(number + 1) * traces_data.PER_PAGE > last,
                  icon=":material/chevron_right:", shortcut="Right")  # fmt: skip
        st.caption(plain(told))


def _turn(step: int) -> None:
    import streamlit as st

    st.session_state["traces:number"] = max(0, st.session_state.get("traces:number", 0) + step)


def _page_number(filters: browse.Filters, text: str) -> int:
    """The page that was turned to; the first, once something else is asked for."""
    import streamlit as st

    asked = (shown().project, repr(filters), text)
    if st.session_state.get("traces:asked") != asked:
        st.session_state["traces:asked"], st.session_state["traces:number"] = asked, 0
    return int(st.session_state["traces:number"])


def _nothing(waiting: int, text: str, filters: browse.Filters) -> None:
    if text and waiting:
        empty(f"Nothing found in what is indexed; {waiting:,} traces are being indexed. Search "
              "again in a while, or run `flywheel ingest`, which waits until all is.")  # fmt: skip
    elif text or filters not in (browse.EVERYTHING, browse.Filters(origins=RECORDED)):
        empty("Nothing fits. *Clear filters* shows all recorded traffic again; *Rollouts and "
              "evaluations too* looks in what turns made as well.")  # fmt: skip
    else:
        kind = "recorded traffic" if filters.origins else "traces"
        empty(f"No {kind} of this project yet. `flywheel serve PROJECT` records each request, "
              "`flywheel import FILE --project FOLDER` brings files in; `flywheel ingest` takes "
              "in what waits.")  # fmt: skip
