"""The overview's charts: reward of recorded traffic over time, and on held-out problems by turn.

Enter records; leave altair charts that Streamlit's theme colours for light and dark.
"""

from collections.abc import Sequence
from typing import Any

from app.views.charting import BLUE, GREEN, GREY, ORANGE, interval, iso, minute, utc, values
from app.views.ledger_data import Turn, outcome_of
from flywheel.lineage import Decision
from storage.glance import Glance

_MOST_LABELS = 12
"""Deployments whose names are written into the chart; the others are lines only."""
_SCALE = (-0.02, 1.02)


def reward_over_time(found: Glance, deployed: Sequence[Decision]) -> Any:
    """Mean reward a stretch of time with its interval, and where each deployment began."""
    import altair as alt

    rows = []
    for one in found.buckets:
        low, high = interval(one.reward, one.graded, one.spread)
        rows.append({
            "at": iso(one.start), "told": minute(one.start), "reward": one.reward,
            "low": low, "high": high, "graded": one.graded, "traces": one.traces,
        })  # fmt: skip
    value = alt.Y("reward:Q", title="mean reward", scale=alt.Scale(domain=_domain(rows)))
    base = alt.Chart(values(rows)).encode(x=utc("at"))
    band = base.mark_area(opacity=0.22).encode(
        y=alt.Y("low:Q", title="mean reward", scale=alt.Scale(domain=_domain(rows))), y2="high:Q"
    )
    told = [
        alt.Tooltip("told:N", title="from (UTC)"),
        alt.Tooltip("reward:Q", title="mean reward", format=".3f"),
        alt.Tooltip("low:Q", title="at least", format=".3f"),
        alt.Tooltip("high:Q", title="at most", format=".3f"),
        alt.Tooltip("graded:Q", title="graded", format=","),
        alt.Tooltip("traces:Q", title="traces", format=","),
    ]
    line = base.mark_line(point=alt.OverlayMarkDef(size=28)).encode(y=value, tooltip=told)
    layers: list[Any] = [band, line, *_marks(found, deployed)]
    return alt.layer(*layers).properties(height=280)


def _domain(rows: Sequence[dict[str, Any]]) -> list[float]:
    known = [row[name] for row in rows for name in ("low", "high", "reward")
             if row[name] is not None]  # fmt: skip
    if not known or (min(known) >= 0 and max(known) <= 1):
        return list(_SCALE)
    room = 0.05 * (max(known) - min(known) or 1)
    return [min(known) - room, max(known) + room]


def _marks(found: Glance, deployed: Sequence[Decision]) -> list[Any]:
    import altair as alt

    first = found.first or 0
    inside = [one for one in deployed if one.at >= first]
    if not inside:
        return []
    rows = [
        {
            "at": iso(one.at), "told": minute(one.at), "deployment": one.deployment,
            "outcome": one.outcome, "by": one.by, "reason": one.reason[:300], "level": number % 3,
            "label": one.deployment if len(inside) - number <= _MOST_LABELS else "",
        }
        for number, one in enumerate(inside)
    ]  # fmt: skip
    told = [
        alt.Tooltip("deployment:N"), alt.Tooltip("outcome:N"), alt.Tooltip("by:N"),
        alt.Tooltip("told:N", title="at (UTC)"), alt.Tooltip("reason:N"),
    ]  # fmt: skip
    base = alt.Chart(values(rows)).encode(x=utc("at"), tooltip=told)
    rule = base.mark_rule(strokeDash=[4, 3], strokeWidth=1.5, color=ORANGE)
    labels = [
        base.transform_filter(f"datum.level == {level}")
        .mark_text(align="right", baseline="top", dx=-4, dy=4 + 14 * level, color=ORANGE)
        .encode(text="label:N", y=alt.value(0))
        for level in range(3)
        if any(row["level"] == level for row in rows)
    ]
    return [rule, *labels]


def traces_over_time(found: Glance) -> Any:
    """How much came in each stretch: graded, and not."""
    import altair as alt

    rows = [
        {"at": iso(one.start), "to": iso(one.start + found.width), "kind": kind,
         "told": minute(one.start), "low": low, "high": high, "traces": high - low}
        for one in found.buckets
        for kind, low, high in (
            ("graded", 0, one.graded), ("not graded", one.graded, one.traces)
        )
        if high > low
    ]  # fmt: skip
    return (
        alt.Chart(values(rows))
        .mark_rect()
        .encode(
            x=utc("at"),
            x2="to:T",
            y=alt.Y("low:Q", title="traces", axis=alt.Axis(tickCount=3, format="~s")),
            y2="high:Q",
            color=alt.Color(
                "kind:N", title=None, legend=alt.Legend(orient="top"),
                scale=alt.Scale(domain=["graded", "not graded"], range=[BLUE, GREY]),
            ),
            tooltip=[
                alt.Tooltip("told:N", title="from (UTC)"),
                alt.Tooltip("kind:N", title="they are"),
                alt.Tooltip("traces:Q", format=","),
            ],
        )
        .properties(height=180)
    )  # fmt: skip


def heldout_by_turn(turns: Sequence[Turn]) -> Any | None:
    """What champion and candidate of each turn were worth on the problems held out; the bar is the
    interval of their difference, laid at the champion: above it, the candidate is better."""
    import altair as alt

    rows = [row for turn in turns for row in _sides(turn)]
    if not rows:
        return None
    place = alt.X("turn:N", title="turn", sort=alt.SortField("number"),
                  axis=alt.Axis(labelAngle=0, labelOverlap=True))  # fmt: skip
    scale = alt.Scale(domain=list(_SCALE), clamp=True)
    base = alt.Chart(values(rows)).encode(
        x=place,
        xOffset=alt.XOffset("side:N", sort=["champion", "candidate"]),
        color=alt.Color(
            "shown:N", title=None, legend=alt.Legend(orient="top"),
            scale=alt.Scale(
                domain=["champion", "promoted", "not promoted"], range=[GREY, GREEN, ORANGE]
            ),
        ),
        tooltip=[
            "deployment:N", "side:N", alt.Tooltip("outcome:N", title="turn"),
            alt.Tooltip("reward:Q", format=".3f"), alt.Tooltip("difference:Q", format="+.3f"),
            alt.Tooltip("interval:N", title="95% interval"), "problems:Q",
        ],
    )  # fmt: skip
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2, opacity=0.6).encode(
        y=alt.Y("low:Q", title="held-out reward", scale=scale), y2="high:Q"
    )  # fmt: skip
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        y=alt.Y("reward:Q", title="held-out reward", scale=scale)
    )
    return alt.layer(bars, points).properties(height=260)


def _sides(turn: Turn) -> list[dict[str, Any]]:
    if turn.evaluation is None:
        return []
    overall, outcome = turn.evaluation.overall, outcome_of(turn)
    known = None not in (overall.champion, overall.low, overall.high)
    told = {
        "turn": turn.label, "number": turn.began, "outcome": outcome.replace("_", " "),
        "problems": overall.problems, "difference": overall.difference,
        "interval": f"{overall.low:+.3f} to {overall.high:+.3f}" if known else "unknown",
    }  # fmt: skip
    champion = overall.champion or 0.0
    return [
        {**told, "side": "champion", "shown": "champion", "deployment": turn.evaluation.champion,
         "reward": overall.champion},
        {**told, "side": "candidate", "reward": overall.candidate,
         "shown": "promoted" if outcome == "promoted" else "not promoted",
         "deployment": turn.evaluation.candidate,
         "low": champion + (overall.low or 0.0) if known else None,
         "high": champion + (overall.high or 0.0) if known else None},
    ]  # fmt: skip
