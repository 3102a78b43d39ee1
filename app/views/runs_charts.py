"""The runs' charts: training curves laid over each other, and an evaluation by slice."""

from collections.abc import Sequence
from typing import Any

from app.views.charting import BLUE, GREEN, GREY, RED, values
from app.views.runs_data import Curves
from flywheel.lineage import SliceResult


def curve(curves: Curves, *, logarithmic: bool = False) -> Any:
    """A line for each run and each thing of the panel. One run's things differ by colour; several
    runs do, and their things by dashes."""
    import altair as alt

    points = curves.points
    rows = [
        {"run": one.run, "line": one.line, "step": one.step, "value": one.value} for one in points
    ]
    runs = list(dict.fromkeys(one.run for one in points))
    lines = list(dict.fromkeys(one.line for one in points))
    kind: Any = "log" if logarithmic and all(one.value > 0 for one in points) else "linear"
    field, shown = ("run", runs) if len(runs) > 1 else ("line", lines)
    legend = alt.Legend(orient="top", columns=2) if len(shown) > 1 else None
    dashes = {
        "strokeDash": alt.StrokeDash("line:N", title=None, sort=lines,
                                     legend=alt.Legend(orient="top", columns=2))
    } if len(runs) > 1 and len(lines) > 1 else {}  # fmt: skip
    return (
        alt.Chart(values(rows))
        .mark_line(point=len(points) < 120)
        .encode(
            x=alt.X("step:Q", title="optimizer step", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("value:Q", title=curves.unit, scale=alt.Scale(type=kind, zero=False)),
            color=alt.Color(f"{field}:N", title=None, sort=shown, legend=legend),
            tooltip=["run:N", "line:N", "step:Q",
                     alt.Tooltip("value:Q", title=curves.unit, format=".4g")],
            **dashes,
        )
        .properties(height=240, title=curves.title)
    )  # fmt: skip


def by_slice(results: Sequence[SliceResult]) -> Any:
    """The difference of candidate and champion on each slice, with its interval: right of zero the
    candidate is better."""
    import altair as alt

    rows = [
        {
            "slice": one.name, "problems": one.problems, "champion": one.champion,
            "candidate": one.candidate, "difference": one.difference, "low": one.low,
            "high": one.high, "is": _side(one),
        }
        for one in results
    ]  # fmt: skip
    base = alt.Chart(values(rows)).encode(
        y=alt.Y("slice:N", title=None, sort=None),
        color=alt.Color(
            "is:N", title=None, legend=alt.Legend(orient="top"),
            scale=alt.Scale(domain=["better", "not told apart", "worse"], range=[GREEN, BLUE, RED]),
        ),
        tooltip=[
            "slice:N", "problems:Q", alt.Tooltip("champion:Q", format=".3f"),
            alt.Tooltip("candidate:Q", format=".3f"), alt.Tooltip("difference:Q", format="+.3f"),
            alt.Tooltip("low:Q", format="+.3f"), alt.Tooltip("high:Q", format="+.3f"),
        ],
    )  # fmt: skip
    title = "difference in reward, candidate less champion"
    axis = alt.Axis(tickCount=8, format="+.2f", labelOverlap=True)
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title=title, axis=axis), x2="high:Q"
    )  # fmt: skip
    points = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=alt.X("difference:Q", title=title, axis=axis)
    )
    zero = alt.Chart(values([{"at": 0}])).mark_rule(strokeDash=[4, 3], color=GREY).encode(x="at:Q")
    return alt.layer(zero, bars, points).properties(height=alt.Step(30))


def _side(one: SliceResult) -> str:
    if one.low is not None and one.low > 0:
        return "better"
    return "worse" if one.high is not None and one.high < 0 else "not told apart"
