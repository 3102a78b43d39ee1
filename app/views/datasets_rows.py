"""Rows of a dataset: those kept, and examples of those dropped.

What rows say came from outside and is shown escaped.
"""

from collections.abc import Sequence

from app.views import kept
from app.views.frame import Shown, empty, link, plain
from app.views.ledger_data import Ledger
from app.views.safe_html import wrapped
from app.views.traces_html import turn as message_of
from app.views.words import decimal, many, said
from flywheel.lineage import Dataset
from flywheel.records import Message, last_answer, model_spans
from storage import dataset_rows
from storage.curate import Dropped
from storage.dataset_rows import Row

_PAGE = 20
_EXAMPLES = 50
"""Dropped examples listed at once."""


def kept_part(here: Shown, dataset: Dataset, known: Ledger) -> None:
    import streamlit as st

    key = f"datasets_kept:{dataset.id}"
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input("Find", key=f"{key}:find", placeholder="prompt, answer, slice or id …",
                             width=380)  # fmt: skip
        number = _paged(f"{key}:{text}")
    page = kept.by_sequence(
        here.home, "dataset page",
        lambda: dataset_rows.page(
            here.home, dataset, text=text, offset=number * _PAGE, limit=_PAGE
        ),
        dataset.id, text, number,
    )  # fmt: skip
    if not page.rows:
        empty("No row of it." if page.total == 0 else "No more rows: go back.")
        return
    last = number * _PAGE + len(page.rows)
    st.caption(f"{number * _PAGE + 1:,} to {last:,} of {many(page.total, 'row')}")
    place = rows_table(page.rows, f"{key}:table:{number}")
    row_shown(page.rows[place or 0])


def _paged(key: str) -> int:
    """The page's number; the right arrow goes on, the left one back."""
    import streamlit as st

    number = int(st.session_state.get(key, 0))

    def go(to: int) -> None:
        st.session_state[key] = max(0, to)

    st.button("Back", key=f"{key}:back", shortcut="Left", on_click=go, args=(number - 1,),
              disabled=number == 0)  # fmt: skip
    st.button("Next", key=f"{key}:next", shortcut="Right", on_click=go, args=(number + 1,))
    return number


def rows_table(rows: Sequence[Row], key: str) -> int | None:
    """The rows in short; which one is selected."""
    import streamlit as st

    picked = st.dataframe(
        [
            {
                "asked": _asked(one.messages)[:200], "answer": said(one.completion)[:200],
                "reward": one.reward, "slice": one.slice, "from": one.origin,
                "rests on": one.confirmed_by, "weight": one.weight,
            }
            for one in rows
        ],
        hide_index=True, placeholder="–", width="stretch", on_select="rerun",
        selection_mode="single-row", key=key,
        column_config={
            "reward": st.column_config.NumberColumn(format="%.3f"),
            "weight": st.column_config.NumberColumn(format="%.2f"),
        },
    )  # fmt: skip
    return picked.selection.rows[0] if picked.selection.rows else None


def _asked(messages: Sequence[Message]) -> str:
    users = [one for one in messages if one.role == "user"] or list(messages)
    return " ".join(said(users[-1]).split()) if users else ""


def row_shown(row: Row) -> None:
    """One row in full: its prompt and the answer that is trained on."""
    import streamlit as st

    with st.container(border=True):
        pieces = [message_of(one) for one in row.messages]
        answer = message_of(row.completion, note="trained on", answer=True)
        st.html(wrapped(*pieces, answer))
        st.caption(
            f"reward {decimal(row.reward)} · slice {plain(row.slice)} · {plain(row.origin)} · "
            f"rests on {plain(row.confirmed_by or 'nothing outside the model')}"
        )
        link("traces", "Its trace →", trace=row.trace_id)


def dropped_part(here: Shown, dataset: Dataset, known: Ledger) -> None:
    import streamlit as st

    counted = {one.rule: one.rows_in - one.rows_out for one in dataset.rules}
    rules = [name for name, count in counted.items() if count]
    if not rules:
        empty("No rule dropped anything.")
        return
    rule = st.pills("Rule", rules, key=f"datasets_rule:{dataset.id}", default=rules[0],
                    format_func=lambda one: f"{one} ({counted[one]:,})", required=True)  # fmt: skip
    found = kept.by_sequence(
        here.home, "dropped",
        lambda: dataset_rows.dropped(here.home, dataset, rule=rule or "", limit=_EXAMPLES),
        dataset.id, rule,
    )  # fmt: skip
    if not found.rows:
        empty("No example of them was kept with the dataset.")
        return
    st.caption(f"{many(len(found.rows), 'example')} of {counted.get(rule or '', 0):,} dropped by "
               f"{plain(rule or '')}")  # fmt: skip
    answers = kept.by_sequence(
        here.home, "dropped answers", lambda: _answers(here, found.rows), dataset.id, rule
    )
    picked = st.dataframe(
        [
            {
                "why": one.reason, "asked": answers.get(one.trace_id, ("", ""))[0][:200],
                "answer": answers.get(one.trace_id, ("", ""))[1][:200], "trace": one.trace_id[:12],
            }
            for one in found.rows
        ],
        hide_index=True, width="stretch", on_select="rerun", selection_mode="single-row",
        key=f"datasets_dropped:{dataset.id}:{rule}",
    )  # fmt: skip
    if picked.selection.rows:
        _dropped_one(found.rows[picked.selection.rows[0]], answers)


def _answers(here: Shown, rows: Sequence[Dropped]) -> dict[str, tuple[str, str]]:
    """By trace, what was asked and answered last; traces that are gone are left out."""
    from storage.queries import traces

    found = {}
    for batch in traces(here.home, ids=sorted({one.trace_id for one in rows})):
        for trace in batch:
            calls, choice = model_spans(trace), last_answer(trace)
            asked = _asked(calls[-1].call.input) if calls and calls[-1].call else ""
            found[trace.id] = (asked, said(choice.message) if choice else "")
    return found


def _dropped_one(one: Dropped, answers: dict[str, tuple[str, str]]) -> None:
    import streamlit as st

    asked, answer = answers.get(one.trace_id, ("", ""))
    with st.container(border=True):
        st.markdown(f"**Dropped by {plain(one.rule)}:** {plain(one.reason)}")
        for label, text in (("asked", asked), ("answered", answer)):
            st.caption(label)
            st.code(text or "(not in the store any more)", language=None, wrap_lines=True)
        link("traces", "Its trace →", trace=one.trace_id)
