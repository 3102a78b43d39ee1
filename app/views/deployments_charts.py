"""The deployments' charts: who was champion when, and the evidence of each candidate."""

from collections.abc import Sequence
from typing import Any

from app.views.charting import BLUE, GREEN, GREY, ORANGE, iso, minute, utc, values
from app.views.deployments_data import Reign, Version

_HOW = {"promoted": "promoted", "rolled_back": "by rollback", "reconciled": "reconciled"}
"""Outcome -> how the deployment came to answer."""


def timeline(found: Sequence[Reign], now: int) -> Any:
    """A bar for each stretch of time in which one deployment answered."""
    import altair as alt

    rows = [
        {
            "deployment": one.deployment, "from": iso(one.begin), "to": iso(one.end or now),
            "began": minute(one.begin), "ended": minute(one.end) if one.end else "still answers",
            "how": _HOW.get(one.why.outcome, one.why.outcome), "by": one.why.by,
            "reason": one.why.reason[:300],
        }
        for one in found
    ]  # fmt: skip
    return (
        alt.Chart(values(rows))
        .mark_bar(height=16, cornerRadius=3)
        .encode(
            x=utc("from"),
            x2="to:T",
            y=alt.Y("deployment:N", title=None, sort=None),
            color=alt.Color(
                "how:N", title=None, legend=alt.Legend(orient="top"),
                scale=alt.Scale(domain=list(_HOW.values()),
                                range=[GREEN, ORANGE, GREY]),
            ),
            tooltip=[
                "deployment:N", "how:N", "by:N",
                alt.Tooltip("began:N", title="from (UTC)"),
                alt.Tooltip("ended:N", title="to (UTC)"), "reason:N",
            ],
        )
        .properties(height=alt.Step(30))
    )  # fmt: skip


def evidence(found: Sequence[Version]) -> Any | None:
    """The difference of each version to the champion that it was compared with, with its interval:
    right of zero it was better."""
    import altair as alt

    rows = [
        {
            "version": one.name, "against": one.evaluation.champion, "part": one.part,
            "difference": one.evaluation.overall.difference, "low": one.evaluation.overall.low,
            "high": one.evaluation.overall.high, "problems": one.evaluation.overall.problems,
        }
        for one in found
        if one.evaluation is not None
    ]  # fmt: skip
    if not rows:
        return None
    base = alt.Chart(values(rows)).encode(
        y=alt.Y("version:N", title=None, sort=None),
        tooltip=[
            "version:N", "against:N", alt.Tooltip("difference:Q", format="+.3f"),
            alt.Tooltip("low:Q", format="+.3f"), alt.Tooltip("high:Q", format="+.3f"),
            "problems:Q",
        ],
    )  # fmt: skip
    title = "difference in held-out reward to the champion of its time"
    bars = base.mark_rule(strokeWidth=2, color=BLUE).encode(
        x=alt.X("low:Q", title=title, axis=alt.Axis(tickCount=8, format="+.2f", labelOverlap=True)),
        x2="high:Q",
    )
    points = base.mark_point(filled=True, size=80, color=BLUE, opacity=1).encode(
        x=alt.X("difference:Q", title=title)
    )
    zero = alt.Chart(values([{"at": 0}])).mark_rule(strokeDash=[4, 3], color=GREY).encode(x="at:Q")
    return alt.layer(zero, bars, points).properties(height=alt.Step(30))
