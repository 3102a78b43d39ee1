"""What charts share: colours legible on white and on black, times and rows as Vega takes them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

BLUE, GREY, GREEN, ORANGE, RED = "#3b82c4", "#9aa5b1", "#2f9e6e", "#e07b39", "#d1495b"


def values(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows as a chart takes them in, without a data frame between."""
    import altair as alt

    data: Any = alt.Data
    return data(values=list(rows))


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
