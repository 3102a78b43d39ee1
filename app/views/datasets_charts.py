"""The datasets' charts: how many candidates each rule let through, and how a column shifted."""

from collections.abc import Sequence
from typing import Any

from app.views.charting import BLUE, GREY, values
from flywheel.lineage import RuleCount
from storage.shifts import Shift


def funnel(rules: Sequence[RuleCount]) -> Any:
    """A bar a rule, from all candidates down to the rows that were kept; what it took away grey."""
    import altair as alt

    rows = [
        {"rule": f"{place}. {one.rule}", "what": what, "low": low, "high": high,
         "rows": high - low, "in": one.rows_in, "out": one.rows_out, "note": one.note[:300]}
        for place, one in enumerate(rules, start=1)
        for what, low, high in (
            ("let through", 0, one.rows_out), ("dropped", one.rows_out, one.rows_in)
        )
    ]  # fmt: skip
    labels = [
        {"rule": f"{place}. {one.rule}", "at": one.rows_in, "text": f"{one.rows_out:,}"}
        for place, one in enumerate(rules, start=1)
    ]
    bars = (
        alt.Chart(values(rows))
        .mark_bar()
        .encode(
            y=alt.Y("rule:N", title=None, sort=None),
            x=alt.X("low:Q", title="rows", axis=alt.Axis(tickMinStep=1, tickCount=6, format=",d")),
            x2="high:Q",
            color=alt.Color(
                "what:N", title=None, legend=alt.Legend(orient="top"),
                scale=alt.Scale(domain=["let through", "dropped"], range=[BLUE, GREY]),
            ),
            tooltip=[
                "rule:N", "what:N", alt.Tooltip("rows:Q", format=","),
                alt.Tooltip("in:Q", format=","), alt.Tooltip("out:Q", format=","), "note:N",
            ],
        )
    )  # fmt: skip
    text = (
        alt.Chart(values(labels))
        .mark_text(align="left", dx=6, color=GREY)
        .encode(y=alt.Y("rule:N", sort=None), x="at:Q", text="text:N")
    )
    return alt.layer(bars, text).properties(height=alt.Step(30))


def shares(shift: Shift) -> Any:
    """What share of the rows lies in each bin, before (grey) and after."""
    import altair as alt

    order = [one.name for one in shift.bins]
    rows = [
        {"bin": one.name, "which": which, "share": share}
        for one in shift.bins
        for which, share in (("before", one.before), ("after", one.after))
    ]
    return (
        alt.Chart(values(rows))
        .mark_bar()
        .encode(
            x=alt.X("bin:N", title=None, sort=order, axis=alt.Axis(labelLimit=90)),
            xOffset=alt.XOffset("which:N", sort=["before", "after"]),
            y=alt.Y("share:Q", title=None, axis=alt.Axis(format=".0%", tickCount=4)),
            color=alt.Color(
                "which:N", title=None, sort=["before", "after"],
                legend=alt.Legend(orient="top"),
                scale=alt.Scale(domain=["before", "after"], range=[GREY, BLUE]),
            ),
            tooltip=["bin:N", "which:N", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(height=180)
    )  # fmt: skip
