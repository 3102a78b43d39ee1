"""The canary that runs: its interval over the conversations, its guard rails, what they say."""

from pathlib import Path
from typing import Any

from app.views import kept
from app.views.charting import BLUE, GREY, values
from app.views.frame import Shown, plain
from app.views.words import decimal, many
from flywheel.serving_section import ReleaseSection
from serving.release import Standing, shadow_standing, standing
from serving.routing import read
from serving.sequential import Interval
from serving.watch import told, watched

_SAYS = {
    "promote": "Promoted at the next grading",
    "roll back": "Rolled back at the next grading",
    "not enough evidence": "Ends at the next grading",
    "go on": "Goes on",
}


def release(here: Shown) -> None:
    """Nothing, where none runs."""
    import streamlit as st

    section, routing = section_of(here.folder), read(here.home)
    shadow = kept.by_sequence(
        here.home,
        "shadow",
        lambda: shadow_standing(here.home, here.project, section),
        here.project,
        section.model_dump_json(),
        str(routing.version),
    )
    if shadow is not None:
        st.caption(
            f"{plain(shadow.shadow)} is asked copies of {shadow.share:.0%} of the requests, "
            f"unseen: {plain(shadow.reason)}."
        )
    found = kept.by_sequence(
        here.home,
        "release",
        lambda: standing(here.home, here.project, section),
        here.project,
        section.model_dump_json(),
        str(routing.version),
    )
    if found is None:
        return
    stands, curve = found
    st.subheader(f"Canary of {plain(stands.challenger)}", anchor=False)
    st.markdown(f"**{_SAYS[stands.says]}**: {plain(stands.reason)}.")
    st.caption(_measured(stands))
    if len(curve) > 1:
        st.altair_chart(interval_chart(curve, stands.margin), width="stretch")
    rails, route = watched(here.home, here.project), routing.projects[here.project]
    st.dataframe(
        rail_rows(told(rails.rails, section) if rails and rails.of(route) else stands.rails),
        hide_index=True,
        width="stretch",
        placeholder="–",
        column_config={
            "towards a rollback": st.column_config.ProgressColumn(
                min_value=0.0,
                max_value=1.0,
                format="percent",
                help="Evidence against it, as a share of what takes it out",
            )
        },
    )


def section_of(folder: Path | None) -> ReleaseSection:
    """The project's, or every default where its file cannot be read."""
    from flywheel.errors import FlywheelError
    from flywheel.project import load_project

    try:
        return load_project(folder).release if folder else ReleaseSection()
    except FlywheelError:
        return ReleaseSection()


def _measured(stands: Standing) -> str:
    its, own = stands.units
    waiting = sum(stands.ungraded)
    return (
        f"Mean reward {decimal(stands.means[1])} over {many(own, 'conversation')} against "
        f"{decimal(stands.means[0])} over {its:,} of {stands.champion}; "
        f"{many(waiting, 'trace')} not graded yet. The interval holds with "
        f"{stands.confidence:.0%} however often one looks."
    )


def interval_chart(curve: list[Interval], margin: float) -> Any:
    """The difference of mean rewards and its interval, as they came to be."""
    import altair as alt

    rows = [
        {"conversations": one.units, "difference": one.difference, "low": one.low,
         "high": one.high}
        for one in curve
    ]  # fmt: skip
    base = alt.Chart(values(rows)).encode(
        x=alt.X("conversations:Q", title="graded conversations, both arms together"),
        tooltip=[
            alt.Tooltip(f"{name}:Q", format="," if name == "conversations" else "+.3f")
            for name in ("conversations", "difference", "low", "high")
        ],
    )
    band = base.mark_area(opacity=0.2, color=BLUE).encode(
        y=alt.Y("low:Q", title="reward less the champion's", scale=alt.Scale(domain=[-1, 1])),
        y2="high:Q",
    )
    line = base.mark_line(color=BLUE, strokeWidth=2).encode(y="difference:Q")
    zero = alt.Chart(values([{"at": -margin}])).mark_rule(strokeDash=[4, 3], color=GREY)
    return alt.layer(band, line, zero.encode(y="at:Q")).properties(height=220)


def rail_rows(rails: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "guard rail": one["rail"],
            "challenger": "{} of {}".format(*one["challenger"]),
            "champion": "{} of {}".format(*one["champion"]),
            "allowed": one["allowed"],
            "towards a rollback": one["evidence"],
        }
        for one in rails
    ]
