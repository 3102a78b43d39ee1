"""Runs: how a turn trained, what its candidate was worth, and what it answers otherwise.

One part of a run is drawn at a time, so that a rerun costs what it shows.
"""

from collections.abc import Callable

from app.views import kept
from app.views.frame import Shown, empty, link, plain, shown, when
from app.views.ledger_data import Turn, outcome_of, turns
from app.views.progress_data import Progress, note_of, progress, seconds_by_step, standing
from app.views.runs_charts import by_slice, curve
from app.views.runs_data import alarms_of, configuration, curves
from app.views.runs_pairs import pairs_part
from app.views.words import decimal, figure, heading, many, seconds

_OVERLAID = 3
"""Runs whose curves are laid over each other at first."""


def view() -> None:
    import streamlit as st

    here = shown()
    heading("Runs", here.project)
    if not here.project:
        empty("No run yet. `flywheel init FOLDER` begins a project.")
        return
    made = list(reversed(turns(kept.ledger(here.home, here.project))))
    now = progress(here.home, here.project)
    if now is not None and now.alive is not False:
        link("overview", "A turn is under way: the overview follows it →")
    if not made:
        empty(
            "No run yet. `flywheel turn FOLDER` makes one: it samples answers, chooses what to "
            "learn from, trains, and compares the new weights with the old."
        )
        return
    chosen = _chosen(made, now)
    _summary(here, chosen, now)
    parts: dict[str, Callable[[Shown, Turn, list[Turn]], None]] = {
        "Curves": _curves,
        "Evaluation": _evaluation,
        "Answers": lambda here, turn, _: pairs_part(here, turn),
        "Configuration": _configuration,
        "Page": _page,
    }
    part = st.segmented_control("Part", list(parts), default=_first(chosen), key="runs_part",
                                label_visibility="collapsed", required=True)  # fmt: skip
    parts[part or "Curves"](here, chosen, made)


def _first(turn: Turn) -> str:
    return "Evaluation" if turn.evaluation else "Curves" if turn.run else "Page"


def _chosen(made: list[Turn], now: Progress | None) -> Turn:
    import streamlit as st

    by_id = {one.run_id: one for one in made}
    asked = st.query_params.get("run", "")
    first = list(by_id).index(asked) if asked in by_id else 0
    name = st.selectbox(
        "Run", list(by_id), index=first, key=f"runs_run:{asked}", width=520,
        format_func=lambda one: f"{by_id[one].name}, {standing(by_id[one], now)[0]}, "
        f"{when(by_id[one].began)[:16]}",
    )  # fmt: skip
    return by_id[name]


def _summary(here: Shown, turn: Turn, now: Progress | None) -> None:
    import streamlit as st

    run, dataset, evaluation = turn.run, turn.dataset, turn.evaluation
    steps = (note_of(here.home.runs / turn.run_id, "training") or {}).get("steps")
    spent = sum(seconds_by_step(here.home.runs / turn.run_id).values())
    with st.container(horizontal=True):
        figure("Came to", *standing(turn, now))
        if run is not None:
            figure("Algorithm", run.algorithm, f"from {run.champion}")
            whole = f"{steps or 'unknown'} steps; the whole turn {seconds(spent or None)}"
            figure("Training", seconds(run.seconds), whole)
        if dataset is not None:
            figure("Learned from", many(dataset.rows, "row"), f"dataset {dataset.id[:8]}")
        if evaluation is not None:
            overall = evaluation.overall
            more = f"{decimal(overall.difference, sign=True)} to {evaluation.champion}"
            figure("Held out", decimal(overall.candidate), more)
    passed = f"{turn.last.gate} gate passed: " if outcome_of(turn) == "unfinished" else ""
    st.text(passed + turn.last.reason)
    with st.container(horizontal=True):
        if dataset is not None:
            link("datasets", "Its dataset →", dataset=dataset.id)
        if evaluation is not None:
            version = evaluation.candidate.rpartition("-v")[2]
            link("deployments", f"{plain(evaluation.candidate)} →", version=version)
        if run is not None and run.mlflow_run_id:
            st.caption(f"MLflow run {run.mlflow_run_id}: `flywheel mlflow` shows its page")


def _curves(here: Shown, turn: Turn, made: list[Turn]) -> None:
    import streamlit as st

    trained = [one for one in made if one.run is not None]
    if not trained:
        empty("Nothing was trained yet: every turn was refused before.")
        return
    by_id = {one.run_id: one for one in trained}
    first = [turn] if turn.run is not None else []
    first += [one for one in trained if one.run_id != turn.run_id]
    for alarm in alarms_of(here.home, turn):
        st.warning(plain(f"{alarm.kind.replace('_', ' ').capitalize()}: {alarm.reason}"))
    names = st.multiselect(
        "Runs", list(by_id), default=[one.run_id for one in first[:_OVERLAID]],
        format_func=lambda one: by_id[one].name, key=f"runs_overlaid:{turn.run_id}",
        max_selections=8,
    )  # fmt: skip
    logarithmic = st.toggle("Logarithmic loss", key="runs_log")
    shown_runs = [by_id[one] for one in names]
    left, right = st.columns(2)
    panels = curves(here.home, shown_runs)
    for place, panel in enumerate(panels):
        with (left, right)[place % 2]:
            log = logarithmic and panel.title == "Loss"
            st.altair_chart(curve(panel, logarithmic=log), width="stretch")
    if not panels:
        st.caption("No metrics: their files are gone, or no run is chosen.")


def _evaluation(here: Shown, turn: Turn, made: list[Turn]) -> None:
    import streamlit as st

    found = turn.evaluation
    if found is None:
        empty("It was never compared: a gate refused it before.")
        return
    results = [found.overall, *found.slices]
    st.altair_chart(by_slice(results), width="stretch")
    st.dataframe(
        [
            {
                "slice": one.name, "problems": one.problems, found.champion: one.champion,
                found.candidate: one.candidate, "difference": one.difference, "low": one.low,
                "high": one.high,
            }
            for one in results
        ],
        hide_index=True, placeholder="–", width="stretch",
        column_config={
            name: st.column_config.NumberColumn(format=form)
            for name, form in (
                (found.champion, "%.3f"), (found.candidate, "%.3f"), ("difference", "%+.3f"),
                ("low", "%+.3f"), ("high", "%+.3f"),
            )
        },
    )  # fmt: skip
    with st.container(horizontal=True):
        figure("Tokens an answer", _number(found.candidate_tokens),
               f"{_number(found.champion_tokens)} of {found.champion}")  # fmt: skip
        figure("Time an answer", seconds(found.candidate_latency_s),
               f"{seconds(found.champion_latency_s)} of {found.champion}")  # fmt: skip
        figure("Not gradable", f"{found.ungraded:,}", "answers that enter no mean")
        figure("Confidence", f"{found.confidence:.0%}", "of the intervals, paired by problem")


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


def _configuration(here: Shown, turn: Turn, made: list[Turn]) -> None:
    import streamlit as st

    if turn.run is None:
        empty("It never trained, so its configuration was not kept.")
        return
    others = {one.run_id: one for one in made if one.run is not None and one is not turn}
    other = st.selectbox(
        "Beside", [None, *others], key=f"runs_beside:{turn.run_id}", width=520,
        format_func=lambda one: others[one].name if one else "nothing: all of it",
        index=1 if others else 0,
    )  # fmt: skip
    beside = others[other].run if other else None
    rows = configuration(turn.run.config, beside.config if beside else None)
    if beside is not None and not rows:
        st.success("The two ran with the same configuration.")
        return
    names = ("key", turn.name, others[other].name if other else "")
    st.dataframe([dict(zip(names[: 2 + bool(other)], row, strict=False)) for row in rows],
                 hide_index=True, width="stretch")  # fmt: skip


def _page(here: Shown, turn: Turn, made: list[Turn]) -> None:
    import streamlit as st

    page = here.home.runs / turn.run_id / "turn.md"
    spent = seconds_by_step(here.home.runs / turn.run_id)
    if spent:
        st.dataframe(
            [{"step": name.replace("_", " "), "seconds": value} for name, value in spent.items()],
            hide_index=True, width=520,
            column_config={"seconds": st.column_config.NumberColumn(format="%.1f")},
        )  # fmt: skip
    if page.exists():
        st.code(page.read_text(errors="replace"), language=None, wrap_lines=True)
    else:
        st.caption("It left no page: it did not end, or its files are gone.")
    st.caption(f"Run {turn.run_id}")
