"""The overview: what serves, how good it is, what the turns came to, and what needs a person.

Reads through `kept`, so a rerun opens no database. A turn under way is followed by files alone,
every two seconds.
"""

from app.views import kept
from app.views.acting import actions
from app.views.frame import Shown, empty, link, plain, shown, when
from app.views.ledger_data import ENDS, Ledger, Turn, took_over, took_over_by, turns
from app.views.overview_charts import heldout_by_turn, reward_over_time, traces_over_time
from app.views.overview_data import Server, Serving, serving
from app.views.overview_needs import Need, needs
from app.views.progress_data import Progress, progress, seconds_by_step, standing
from app.views.words import ago, decimal, dollars, figure, heading, many, pick_range, tokens
from storage.glance import Glance

_TURNS = 10
"""Turns in the table; the Runs page has all."""
ICONS = {
    "broken": ":red[:material/error:]",
    "decide": ":orange[:material/how_to_reg:]",
    "look": ":blue[:material/visibility:]",
}


def view() -> None:
    here = shown()
    heading("Overview", here.project)
    if not here.project:
        empty(
            "Nothing has happened in this home yet. `flywheel demo` shows the whole wheel on a "
            "support inbox in some minutes; `flywheel init FOLDER` begins a project of your own, "
            "and `flywheel serve FOLDER` answers and records its requests."
        )
        return
    known = kept.ledger(here.home, here.project)
    now, up = serving(here.home, here.project, known), kept.server(here.home)
    made = turns(known)
    since = pick_range("overview_range")
    found = kept.glance(here.home, here.project, since)
    _figures(now, up, found)
    if progress(here.home, here.project):
        _under_way(here)
    _needed(
        needs(
            here.home, here.project, here.folder, known=known, turns=made, now=now, up=up,
            turn=progress(here.home, here.project), glance=found, acted=actions(here.home),
            waits=kept.waiting(here.home),
        )
    )  # fmt: skip
    _traffic(found, known)
    _turns(here, made)


def _figures(now: Serving | None, up: Server | None, found: Glance | None) -> None:
    import streamlit as st

    with st.container(horizontal=True):
        figure("Serving", now.deployment if now else "nothing yet", _since(now))
        figure("Server", up.state if up else "down", up.url if up else "requests are not answered")
        if found is not None:
            graded = f"{found.graded:,} of {many(found.traces, 'trace')} graded"
            figure("Mean reward", decimal(found.reward), graded)
            figure("Calls", f"{found.calls:,}", _tokens(found))
            priced = f"said for {found.priced:,} of {many(found.calls, 'call')}"
            figure("Cost", dollars(found.cost_usd), priced)
        if now and now.challenger:
            figure("Canary", f"{now.share:.0%}", f"of requests to {now.challenger}")


def _since(now: Serving | None) -> str:
    if now is None:
        return "no server has served this project here"
    if now.since is None or now.because is None:
        return f"{now.base_model}, as it was from the start"
    return f"since {when(now.since)} ({took_over_by(now.because)})"


def _tokens(found: Glance) -> str:
    read = [one.input_tokens for one in found.traffic if one.input_tokens is not None]
    written = [one.output_tokens for one in found.traffic if one.output_tokens is not None]
    if not read and not written:
        return "tokens unknown: nothing said" if found.traces else "none recorded"
    said = sum(one.with_usage for one in found.traffic)
    share = "" if said == found.traces else f", said in {said:,} of {found.traces:,} traces"
    return f"{tokens(sum(read))} tokens in, {tokens(sum(written))} out{share}"


def _under_way(here: Shown) -> None:
    """The open turn, followed while it lives."""
    import streamlit as st

    @st.fragment(run_every=2)
    def follow() -> None:
        turn = progress(here.home, here.project)
        if turn is None:
            st.success("The turn has ended.")
            st.button("Show what it came to", type="primary")
        else:
            _steps(turn)

    follow()


def _steps(turn: Progress) -> None:
    import streamlit as st

    state = {True: "under way", False: "stopped", None: "open"}[turn.alive]
    with st.container(border=True, gap="small"):
        st.markdown(f"**Turn {state}** from {plain(turn.champion)}, opened {ago(turn.opened)}")
        now = turn.now
        if now is not None and now.total:
            told = f"{now.words}: {now.done or 0} of {now.total} {plain(now.note)}"
            st.progress(min(1.0, (now.done or 0) / now.total), told)
        elif now is not None:
            st.caption(now.words)
        marks = {"done": ":material/check_circle:", "now": ":material/pending:",
                 "ahead": ":material/radio_button_unchecked:"}  # fmt: skip
        for one in turn.steps:
            note = f" :gray[{plain(one.note)}]" if one.note and one.state == "done" else ""
            st.markdown(f"{marks[one.state]} {one.words}{note}")


def _needed(found: list[Need]) -> None:
    import streamlit as st

    st.subheader("What needs a person", anchor=False)
    if not found:
        st.success("Nothing: what there is to decide is decided.", icon=":material/done_all:")
    for one in found:
        with st.container(border=True):
            st.markdown(f"{ICONS[one.kind]} {plain(one.what)}")
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(plain(one.to_do), width="content")
                if one.command:
                    st.code(one.command, language=None, width="content")
                if one.view:
                    link(one.view, f"{one.view.capitalize()} →")


def _traffic(found: Glance | None, known: Ledger) -> None:
    import streamlit as st

    st.subheader("Reward over time (UTC)", anchor=False)
    if found is None or not found.traces:
        empty(
            "No recorded traffic in this stretch of time. `flywheel serve FOLDER` records what it "
            "answers; `flywheel import FILE --project FOLDER` brings recorded traces in."
        )
        return
    if not found.graded:
        st.info(
            "None of these traces has a grade yet: the next turn, or `flywheel grade`, gives them."
        )
    else:
        st.altair_chart(reward_over_time(found, took_over(known)), width="stretch")
    if found.buckets:
        st.altair_chart(traces_over_time(found), width="stretch")
    if found.undated:
        st.caption(f"{found.undated:,} traces say no time and are in no stretch.")


def _turns(here: Shown, made: list[Turn]) -> None:
    import streamlit as st

    st.subheader("Turns", anchor=False)
    if not made:
        empty(
            "No turn yet. `flywheel turn FOLDER` makes one: it grades, chooses what to learn "
            "from, trains, compares, and promotes or refuses."
        )
        return
    chart = heldout_by_turn(made[-40:])
    if chart is not None:
        st.altair_chart(chart, width="stretch")
    now = progress(here.home, here.project)
    st.dataframe(
        [
            {
                "turn": one.label,
                "began (UTC)": when(one.began),
                "came to": _came_to(one, now),
                "gate": one.last.gate if one.last.outcome in ENDS else None,
                "candidate": one.evaluation.candidate if one.evaluation else None,
                "difference": one.evaluation.overall.difference if one.evaluation else None,
                "rows": one.dataset.rows if one.dataset else None,
                "minutes": sum(seconds_by_step(here.home.runs / one.run_id).values()) / 60 or None,
                "reason": one.last.reason,
            }
            for one in reversed(made[-_TURNS:])
        ],
        hide_index=True,
        placeholder="–",
        width="stretch",
        column_config={
            "difference": st.column_config.NumberColumn(format="%+.3f"),
            "minutes": st.column_config.NumberColumn(format="%.1f"),
            "reason": st.column_config.TextColumn(width="large"),
        },
    )
    _page(here, made)


def _came_to(turn: Turn, now: Progress | None) -> str:
    outcome, how = standing(turn, now)
    return outcome if turn.last.outcome in ENDS else f"{outcome}: {how}"


def _page(here: Shown, made: list[Turn]) -> None:
    import streamlit as st

    with_page = [
        one for one in reversed(made) if (here.home.runs / one.run_id / "turn.md").exists()
    ]
    if not with_page:
        return
    with st.expander("A turn's page", icon=":material/article:"):
        names = {one.run_id: one.name for one in with_page}
        chosen = st.selectbox(
            "Turn", list(names), format_func=names.__getitem__, key="overview_turn"
        )
        text = (here.home.runs / chosen / "turn.md").read_text(errors="replace")
        st.code(text, language=None, wrap_lines=True)
