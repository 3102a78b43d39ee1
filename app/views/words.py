"""How pages say numbers and times, and the choice of a stretch of time. None is "unknown"."""

import time

from flywheel.plain import many as many
from flywheel.records import Message, Text, ToolCall

_HOUR = 3600 * 10**9
RANGES: dict[str, int | None] = {
    "24 hours": 24, "7 days": 7 * 24, "30 days": 30 * 24, "90 days": 90 * 24, "All": None,
}  # fmt: skip
"""What a person may choose -> hours back from now; None = all there is."""


def decimal(value: float | None, sign: bool = False) -> str:
    if value is None:
        return "unknown"
    return f"{value:+.3f}" if sign else f"{value:.3f}"


def dollars(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"${value:,.2f}" if value >= 0.1 or not value else f"${value:.4f}"


def tokens(count: int | None) -> str:
    """1,234 · 45.6k · 7.8M"""
    if count is None:
        return "unknown"
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if count >= size:
            return f"{count / (1000 if letter == 'k' else size):.1f}{letter}"
    return f"{count:,}"


def seconds(value: float | None) -> str:
    if value is None:
        return "unknown"
    if value >= 90:
        return f"{value / 60:.1f} min"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def ago(at: int | None, now: int | None = None) -> str:
    if at is None:
        return "at an unknown time"
    past = ((time.time_ns() if now is None else now) - at) / 1e9
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if past >= size:
            count = int(past // size)
            return f"{count} {word}{'' if count == 1 else 's'} ago"
    return "just now"


_LONGEST = 20_000


def said(message: Message) -> str:
    """A message as one plain text: its parts in order, what is no text named by its kind."""
    parts = []
    for one in message.parts:
        if isinstance(one, Text):
            parts.append(one.text)
        elif isinstance(one, ToolCall):
            parts.append(f"[calls {one.name}({one.arguments})]")
        else:
            told = getattr(one, "text", None) or getattr(one, "content", None)
            kind = type(one).__name__.lower()
            parts.append(f"[{kind}: {told}]" if told else f"[{kind}]")
    text = "\n".join(parts)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text):,} characters)"


def figure(label: str, value: str, more: str) -> None:
    """One number that a page begins with: what it is, how much, and on what it rests."""
    import streamlit as st

    from app.views.frame import plain

    with st.container(border=True, width=172, height="stretch", gap=None):
        st.caption(plain(label))
        st.markdown(f"##### {plain(value)}")
        st.caption(plain(more))


def heading(title: str, project: str) -> None:
    import streamlit as st

    from app.views.frame import plain

    st.title(title + (f" · {plain(project)}" if project else ""), anchor=False)


def pick_range(key: str) -> int | None:
    """Since when: nanoseconds of a whole hour, so that what is kept is found. None = always."""
    import streamlit as st

    chosen = st.segmented_control("Stretch of time", list(RANGES), default="30 days", key=key,
                                  label_visibility="collapsed", required=True)  # fmt: skip
    hours = RANGES[chosen or "30 days"]
    return None if hours is None else (time.time_ns() // _HOUR - hours) * _HOUR
