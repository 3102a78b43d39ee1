"""Answers old against new: what both models said to the same held-out problem, with its grades.

Everything shown here was said by models and people outside: it is shown as plain text.
"""

from collections.abc import Sequence

from app.views import kept
from app.views.frame import Shown, empty, link, plain
from app.views.ledger_data import Turn
from app.views.runs_data import Answer, Change, Pair, pairs
from app.views.safe_html import wrapped
from app.views.traces_html import turn as message_of
from app.views.words import decimal, many, said

FILTERS: dict[str, tuple[Change, ...]] = {
    "Changed": ("won", "lost"), "Won": ("won",), "Lost": ("lost",), "Same": ("same",),
    "Ungraded": ("ungraded",), "All": ("won", "lost", "same", "ungraded"),
}  # fmt: skip
_MARKS = {
    "won": ":green[:material/trending_up: won]", "lost": ":red[:material/trending_down: lost]",
    "same": ":material/trending_flat: same", "ungraded": ":orange[:material/help: ungraded]",
}  # fmt: skip
_PLACE = "runs_pair_place"


def pairs_part(here: Shown, turn: Turn) -> None:
    import streamlit as st

    evaluation = turn.evaluation
    if evaluation is None:
        empty("No answers to compare: it was refused before its evaluation.")
        return
    found: list[Pair] = kept.by_sequence(
        here.home, "pairs", lambda: pairs(here.home, here.project, evaluation), evaluation.id
    )
    if not found:
        empty("The answers of this evaluation are not in the store any more.")
        return
    rows = _filtered(found)
    if not rows:
        st.caption("None of them.")
        return
    place = _walked(turn, len(rows))
    _table(rows, place)
    _one(here, rows[place], evaluation.champion, evaluation.candidate)


def _filtered(found: Sequence[Pair]) -> list[Pair]:
    import streamlit as st

    count = {name: sum(one.change in which for one in found) for name, which in FILTERS.items()}
    names = [name for name in FILTERS if count[name]]
    with st.container(horizontal=True):
        name = st.segmented_control(
            "Show", names, default=names[0], key="runs_pairs_show", required=True,
            format_func=lambda one: f"{one} {count[one]}", label_visibility="collapsed",
        )  # fmt: skip
        slices = sorted({one.slice for one in found})
        chosen = st.multiselect("Slices", slices, key="runs_pairs_slices", width=380,
                                label_visibility="collapsed", placeholder="All slices")  # fmt: skip
    which = FILTERS[name or "All"]
    return [one for one in found
            if one.change in which and (not chosen or one.slice in chosen)]  # fmt: skip


def _walked(turn: Turn, count: int) -> int:
    """The pair that is looked at; J and K go on and back."""
    import streamlit as st

    key = f"{_PLACE}:{turn.run_id}"
    place = min(int(st.session_state.get(key, 0)), count - 1)

    def go(to: int) -> None:
        st.session_state[key] = to % count

    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Back", key="runs_pair_back", shortcut="k", on_click=go, args=(place - 1,))
        st.button("Next", key="runs_pair_next", shortcut="j", on_click=go, args=(place + 1,))
        st.caption(f"{place + 1} of {count}")
    return place


def _table(rows: Sequence[Pair], place: int) -> None:
    import streamlit as st

    with st.expander(f"List of {many(len(rows), 'pair')}"):
        st.dataframe(
            [
                {
                    "": "▶" if number == place else "", "number": number + 1,
                    "change": one.change, "slice": one.slice, "asked": one.asked[:200],
                    "old": _reward(one.champion), "new": _reward(one.candidate),
                    "old answer": _text(one.champion)[:200],
                    "new answer": _text(one.candidate)[:200],
                }
                for number, one in enumerate(rows)
            ],
            hide_index=True, placeholder="–", width="stretch",
        )  # fmt: skip


def _reward(one: Answer | None) -> float | None:
    return one.reward if one else None


def _text(one: Answer | None) -> str:
    return said(one.message) if one and one.message else ""


def _one(here: Shown, pair: Pair, champion: str, candidate: str) -> None:
    import streamlit as st

    with st.container(border=True):
        more = f" · answer {pair.attempt + 1}" if pair.attempt else ""
        st.markdown(f"{_MARKS[pair.change]} · {plain(pair.slice)}{more}")
        st.html(wrapped(*[message_of(one) for one in pair.messages]))
        if pair.problem is not None and pair.problem.answer is not None:
            source = f" (from {pair.problem.truth_from})" if pair.problem.truth_from else ""
            st.caption(f"What would be right{plain(source)}")
            st.code(str(pair.problem.answer), language=None, wrap_lines=True)
        left, right = st.columns(2)
        for column, one, name, kind in (
            (left, pair.champion, champion, "old"), (right, pair.candidate, candidate, "new"),
        ):  # fmt: skip
            with column:
                _side(one, f"{kind} · {name}")


def _side(one: Answer | None, name: str) -> None:
    import streamlit as st

    reward = decimal(one.reward) if one else "unknown"
    st.markdown(f"**{plain(name)}** · reward {reward}")
    if one is None:
        st.caption("It gave no answer that was kept.")
        return
    if one.message is not None:
        st.html(wrapped(message_of(one.message, answer=True)))
    if one.why:
        st.caption(plain(one.why))
    for grade in one.grades:
        weight = "" if grade.weight else " (a metric)"
        why = f": {grade.reason}" if grade.reason else ""
        st.caption(plain(f"{grade.reward}{weight} {decimal(grade.value)}{why}"))
    link("traces", "Its trace →", trace=one.trace_id)
