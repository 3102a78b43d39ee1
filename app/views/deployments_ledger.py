"""The ledger of a project: who was champion when, and every decision with its evidence."""

import time

from app.views.deployments_charts import timeline
from app.views.deployments_data import ledger_rows, reigns
from app.views.frame import empty, link, plain, when
from app.views.ledger_data import Ledger
from app.views.words import decimal, many
from flywheel.lineage import Decision


def history(known: Ledger) -> None:
    import streamlit as st

    found = reigns(known)
    if found:
        st.subheader("Who answered when (UTC)", anchor=False)
        st.altair_chart(timeline(found, time.time_ns()), width="stretch")


def ledger(known: Ledger) -> None:
    import streamlit as st

    st.subheader("Ledger", anchor=False)
    if not known.decisions:
        empty("No decision yet: each gate writes one, and so does each person who acts.")
        return
    outcomes = sorted({one.outcome for one in known.decisions})
    chosen = st.pills("Outcome", outcomes, selection_mode="multi", key="ledger_outcomes",
                      format_func=lambda one: one.replace("_", " "))  # fmt: skip
    text = st.text_input("Find", key="ledger_find", placeholder="reason, person, version, gate …")
    rows = ledger_rows(known, chosen, text)
    picked = st.dataframe(
        [
            {
                "at (UTC)": when(one.at), "outcome": one.outcome.replace("_", " "),
                "gate": one.gate, "by": one.by, "deployment": one.deployment,
                "in place of": one.replaced, "reason": one.reason,
            }
            for one in rows
        ],
        hide_index=True, placeholder="–", width="stretch", on_select="rerun",
        selection_mode="single-row", key="ledger_table",
    )  # fmt: skip
    of = many(len(known.decisions), "decision")
    st.caption(f"{len(rows):,} of {of}; select a row for its evidence.")
    place = picked.selection.rows
    if place and place[0] < len(rows):
        _decision(rows[place[0]], known)


def _decision(one: Decision, known: Ledger) -> None:
    import streamlit as st

    with st.container(border=True):
        st.markdown(
            f"**{plain(one.outcome.replace('_', ' '))}** by {plain(one.by)} at {when(one.at)} UTC"
        )
        st.text(one.reason)
        evaluation = next((e for e in known.evaluations if e.id == one.evaluation_id), None)
        if evaluation is not None:
            overall = evaluation.overall
            st.text(
                f"{evaluation.candidate} {decimal(overall.candidate)} against "
                f"{evaluation.champion} {decimal(overall.champion)} on "
                f"{many(overall.problems, 'problem')}"
            )
        if one.evidence:
            st.json(one.evidence, expanded=2)
        if one.run_id:
            link("runs", "Its run", run=one.run_id)
