"""What charts share: colours legible on white and on black, times and rows as Vega takes them."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

BLUE, GREY, GREEN, ORANGE, RED = "#3b82c4", "#9aa5b1", "#2f9e6e", "#e07b39", "#d1495b"


_Z = 1.96


def interval(
    mean: float | None, count: int, spread: float | None
) -> tuple[float | None, float | None]:
    """95% interval of a mean reward over `count`. Rewards from 0 to 1 get Wilson's, which does not
    collapse where all are alike; wider ones the normal one."""
    if mean is None or count < 2:
        return None, None
    if not 0 <= mean <= 1 or (spread or 0) > 0.8:
        half = _Z * (spread or 0) / math.sqrt(count)
        return mean - half, mean + half
    square = _Z * _Z
    middle = (mean + square / (2 * count)) / (1 + square / count)
    root = math.sqrt(mean * (1 - mean) / count + square / (4 * count * count))
    half = _Z / (1 + square / count) * root
    return middle - half, middle + half


def values(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows as a chart takes them in, without a data frame between."""
    import altair as alt

    data: Any = alt.Data
    return data(values=list(rows))


def utc(field: str) -> Any:
    """A field of times along x, in UTC whatever the browser's zone, by a clock of 24 hours."""
    import altair as alt

    return alt.X(
        f"{field}:T", title=None, scale=alt.Scale(type="utc"),
        axis=alt.Axis(labelOverlap=True, tickCount=8, grid=False, labelExpr=_LABEL),
    )  # fmt: skip


_LABEL = (
    "utcFormat(datum.value, utcseconds(datum.value) ? '%H:%M:%S'"
    " : utchours(datum.value) || utcminutes(datum.value) ? '%H:%M'"
    " : utcmonth(datum.value) || utcdate(datum.value) > 1 ? '%d %b' : '%d %b %Y')"
)
"""Vega's own labels are of twelve hours, with nothing that says which half of the day."""


def minute(at: int) -> str:
    """For tooltips, which Vega would tell in the browser's zone."""
    return datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%d %H:%M")


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
