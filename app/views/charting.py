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


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
