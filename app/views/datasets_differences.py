"""A dataset beside another one: rows that came and went, other rules, columns that shifted.

What rows say came from outside and is shown escaped.
"""

from app.views import kept
from app.views.datasets_charts import shares
from app.views.datasets_rows import row_shown, rows_table
from app.views.frame import Shown, empty, plain
from app.views.ledger_data import Ledger, turns
from app.views.words import many
from flywheel.lineage import Dataset
from storage.dataset_rows import Difference
from storage.versions import Comparison, compare

_ACROSS = 2
"""Plots beside each other."""


def difference_part(here: Shown, dataset: Dataset, known: Ledger) -> None:
    import streamlit as st

    from app.views.datasets import name_of

    others = {one.id: one for one in reversed(known.datasets) if one.id != dataset.id}
    if not others:
        empty("There is no other dataset to compare it with; the next turn makes one.")
        return
    made = {one.dataset.id: one for one in turns(known) if one.dataset is not None}
    place = [one.id for one in known.datasets].index(dataset.id)
    before = known.datasets[place - 1].id if place else next(iter(others))
    name = st.selectbox(
        "Beside", list(others), index=list(others).index(before), width=520,
        format_func=lambda one: name_of(others[one], made.get(one)),
        key=f"datasets_beside:{dataset.id}",
    )  # fmt: skip
    found = kept.by_sequence(
        here.home, "comparison",
        lambda: compare(here.home, others[name], dataset), dataset.id, name,
    )  # fmt: skip
    _rows(found.difference, f"{dataset.id}:{name}")
    _rules(found)
    _shifts(found)


def _rows(found: Difference, key: str) -> None:
    import streamlit as st

    st.markdown(
        f"**{found.added:,}** added, **{found.removed:,}** removed, **{found.same:,}** the same "
        f"(of them {found.reweighted:,} with another reward or weight); "
        f"{many(found.changed, 'trace')} in both with another answer."
    )
    rows = {"Added": found.added_rows, "Removed": found.removed_rows}
    side = st.segmented_control("Rows", list(rows), default="Added", key="datasets_side",
                                label_visibility="collapsed", required=True)  # fmt: skip
    listed = rows[side or "Added"]
    if not listed:
        st.caption("None.")
        return
    st.caption(f"The first {len(listed):,}")
    picked = rows_table(listed, f"datasets_difference:{key}:{side}")
    if picked is not None:
        row_shown(listed[picked])


def _rules(found: Comparison) -> None:
    import streamlit as st

    others = [one for one in found.rules if one.what != "same"]
    if not others:
        st.caption("The same rules chose both.")
        return
    st.dataframe(
        [
            {"rule": one.rule, "is": one.what, "before": one.before, "after": one.after}
            for one in others
        ],
        hide_index=True, width="stretch", placeholder="–",
    )  # fmt: skip


def _shifts(found: Comparison) -> None:
    """A plot a column, those that shifted first."""
    import streamlit as st

    drawn = [one for one in found.shifts if one.bins]
    drawn.sort(key=lambda one: -(one.psi or 0.0))
    for start in range(0, len(drawn), _ACROSS):
        for place, shift in zip(st.columns(_ACROSS), drawn[start : start + _ACROSS], strict=False):
            with place:
                apart = "shifted" if shift in found.shifted else "alike"
                ks = "" if shift.ks is None else f", KS {shift.ks:.3f}"
                st.markdown(f"**{plain(shift.column)}** {apart}: PSI {shift.psi:.3f}{ks}")
                st.altair_chart(shares(shift), width="stretch")
