"""Datasets: what each rule let through, which rows were kept and which not, and what changed.

Rows are read a page at a time from the dataset's own files. What they say came from outside: it is
shown escaped, and the gate's report in a frame that may do nothing.
"""

import html
from collections.abc import Callable

from app.told import GATE, RETRAIN
from app.views import kept
from app.views.datasets_charts import funnel
from app.views.datasets_differences import difference_part
from app.views.datasets_rows import dropped_part, kept_part
from app.views.frame import Shown, empty, link, plain, shown, when
from app.views.ledger_data import Ledger, Turn, outcome_of, turns
from app.views.words import figure, heading, many
from flywheel.lineage import Dataset

_REPORT_HEIGHT = 760
_LARGEST_REPORT = 4 << 20
_LINKS = 200
"""Links of the lineage that are listed."""
PRODUCTS = {
    "rows": "answers to learn from",
    "preferences": "answers with labels",
    "problems": "to sample answers to",
    "calibration": "people's verdicts",
    "evaluation": "never trained on",
}


def view() -> None:
    import streamlit as st

    here = shown()
    heading("Datasets", here.project)
    if not here.project:
        empty("No dataset yet. `flywheel init FOLDER` begins a project.")
        return
    known = kept.ledger(here.home, here.project)
    if not known.datasets:
        empty(
            "No dataset yet. `flywheel turn FOLDER` makes one of what recorded traffic and its "
            "feedback teach; `flywheel curate FOLDER` goes just that far."
        )
        return
    chosen, made = _chosen(known)
    _summary(here, chosen, made.get(chosen.id))
    parts: dict[str, Callable[[Shown, Dataset, Ledger], None]] = {
        "Rules": _rules,
        "Kept": kept_part,
        "Dropped": dropped_part,
        "Gate report": _report,
        "Difference": difference_part,
        "Lineage": _lineage,
    }
    part = st.segmented_control("Part", list(parts), default="Rules", key="datasets_part",
                                label_visibility="collapsed", required=True)  # fmt: skip
    parts[part or "Rules"](here, chosen, known)


def _chosen(known: Ledger) -> tuple[Dataset, dict[str, Turn]]:
    import streamlit as st

    made = {one.dataset.id: one for one in turns(known) if one.dataset is not None}
    by_id = {one.id: one for one in reversed(known.datasets)}
    asked = st.query_params.get("dataset", "")
    first = list(by_id).index(asked) if asked in by_id else 0
    name = st.selectbox(
        "Dataset", list(by_id), index=first, key=f"datasets_one:{asked}", width=520,
        format_func=lambda one: name_of(by_id[one], made.get(one)),
    )  # fmt: skip
    return by_id[name], made


def name_of(dataset: Dataset, turn: Turn | None) -> str:
    """What a person calls it by."""
    made = f"of {turn.name}, {when(turn.began)[:16]}" if turn else dataset.id[:8]
    return f"{many(dataset.rows, 'row')} {made}"


def _summary(here: Shown, dataset: Dataset, turn: Turn | None) -> None:
    import streamlit as st

    first = dataset.rules[0].rows_in if dataset.rules else None
    share = f"{dataset.rows / first:.0%} of {many(first, 'candidate')}" if first else "unknown"
    with st.container(horizontal=True):
        figure("Rows", f"{dataset.rows:,}", share)
        figure("Data gate", GATE[dataset.gate_passed], "its report says which checks")
        figure("Product", dataset.product, PRODUCTS[dataset.product])
        if turn is not None:
            figure("Made by", turn.name.partition(" · ")[0], outcome_of(turn).replace("_", " "))
            if turn.evaluation is not None:
                figure("Became", turn.evaluation.candidate, "by training on it")
    _changed(here, dataset)
    with st.container(horizontal=True):
        if turn is not None:
            link("runs", "Its run →", run=turn.run_id)
        st.caption(f"Dataset {dataset.id}")


def _changed(here: Shown, dataset: Dataset) -> None:
    """What stands against it, and what it stands on that has changed since."""
    import streamlit as st

    from storage.dataset_records import standing

    known = kept.by_sequence(
        here.home, "standing", lambda: standing(here.home, dataset), dataset.id
    )
    if dataset.retired:
        st.error(f"Retired: {plain(dataset.retired)}")
    for mark in known.marks:
        st.warning(f"{plain(mark.reason)}, {when(mark.at)}: {RETRAIN[mark.retrain]}.")
    if known.successors:
        st.caption(f"Stands in later ones: {', '.join(one[:8] for one in known.successors)}")


def _rules(here: Shown, dataset: Dataset, known: Ledger) -> None:
    import streamlit as st

    if not dataset.rules:
        empty("No counts were kept with this dataset.")
        return
    st.altair_chart(funnel(dataset.rules), width="stretch")
    st.dataframe(
        [
            {
                "rule": one.rule, "in": one.rows_in, "out": one.rows_out,
                "dropped": one.rows_in - one.rows_out, "by": one.note,
            }
            for one in dataset.rules
        ],
        hide_index=True, width="stretch",
    )  # fmt: skip


def _report(here: Shown, dataset: Dataset, known: Ledger) -> None:
    import streamlit as st

    path = here.home.path(dataset.gate_report) if dataset.gate_report else None
    if path is None or not path.is_file():
        empty("No report: the data gate did not judge it here, or its file is gone.")
        return
    if path.stat().st_size > _LARGEST_REPORT:
        st.caption(f"The report is too large to be shown here: {plain(str(path))}")
        return
    report = html.escape(path.read_text(encoding="utf-8", errors="replace"), quote=True)
    # An empty sandbox inside Streamlit's own frame, which would let scripts at the page.
    st.iframe(
        f'<iframe sandbox="" srcdoc="{report}" title="Data gate report" '
        f'style="width:100%;height:{_REPORT_HEIGHT - 20}px;border:0;border-radius:8px"></iframe>',
        height=_REPORT_HEIGHT,
    )


def _lineage(here: Shown, dataset: Dataset, known: Ledger) -> None:
    import streamlit as st

    from storage.lineage import lineage

    found = kept.by_sequence(
        here.home, "lineage", lambda: lineage(here.home, dataset.id), dataset.id
    )
    many_traces = [one for one in found if one.kind == "trace"]
    rest = [one for one in found if one.kind not in ("trace", "problem")]
    st.dataframe(
        [{"kind": one.kind, "what": one.note, "id": one.id} for one in rest],
        hide_index=True, width="stretch",
    )  # fmt: skip
    st.caption(
        f"Made of {many(len(many_traces), 'trace')}; `flywheel lineage` prints the whole chain."
    )
    if many_traces:
        with st.expander(f"The first {min(_LINKS, len(many_traces))} traces"):
            picked = st.dataframe(
                [{"what": one.note, "id": one.id} for one in many_traces[:_LINKS]],
                hide_index=True, width="stretch", on_select="rerun", selection_mode="single-row",
                key=f"datasets_traces:{dataset.id}",
            )  # fmt: skip
            if picked.selection.rows:
                link("traces", "Open it →", trace=many_traces[picked.selection.rows[0]].id)
