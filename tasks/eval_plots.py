"""Small plots of a report, as SVG made by hand: they need no script and no library.

Enter numbers; leaves markup whose only foreign text is escaped. Colours are classes of the page's
style, so that plots follow a dark page.
"""

import html
import math
from collections.abc import Sequence
from typing import Any

WIDE, HIGH = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 30


def histogram(scores: Sequence[float], bins: int = 20) -> str:
    """How many episodes had which score."""
    if not scores:
        return ""
    low, high = min(0.0, *scores), max(1.0, *scores)
    counts = [0] * bins
    for score in scores:
        counts[min(int((score - low) / (high - low) * bins), bins - 1)] += 1
    most, marks = max(counts), []
    for number, count in enumerate(counts):
        if count:
            left, right = _x(number / bins), _x((number + 1) / bins)
            top = _y(count / most)
            ends = (low + (high - low) * (number + at) / bins for at in (0, 1))
            told = f"{count} episodes, score {' to '.join(f'{end:.2f}' for end in ends)}"
            marks.append(
                f'<rect class="mark" x="{left + 1:.1f}" y="{top:.1f}" '
                f'width="{right - left - 2:.1f}" height="{_y(0) - top:.1f}">'
                f"<title>{told}</title></rect>"
            )
    ticks = [(at / 4, f"{low + (high - low) * at / 4:.3g}") for at in range(5)]
    levels = [(0.0, "0"), (1.0, str(most))]
    return _plot("Episodes by score", _axes(ticks, levels) + "".join(marks))


def tries(passed: Sequence[dict[str, Any]]) -> str:
    """pass@k and pass^k over k."""
    known = [one for one in passed if one["any"] is not None]
    if len(known) < 2:
        return ""
    last = max(one["k"] for one in known)
    marks = []
    for name, sign, style in (("any", "pass@k", "mark"), ("all", "pass^k", "other")):
        points = [(_x((one["k"] - 1) / (last - 1)), _y(one[name])) for one in known]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        marks.append(f'<polyline class="line {style}" points="{line}"/>')
        marks += [
            f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{sign}, k = '
            f"{one['k']}: {one[name]:.3f}</title></circle>"
            for (x, y), one in zip(points, known, strict=True)
        ]
    above, below = _y(known[-1]["any"]) - 8, _y(known[-1]["all"]) + 16
    if below > HIGH - _BOTTOM:  # the axis has its own labels there
        below = _y(known[-1]["all"]) - 8
        above = min(above, below - 12)
    marks += [_text("pass@k", _x(1), above, "end"), _text("pass^k", _x(1), below, "end")]
    ticks = [((k - 1) / (last - 1), str(k)) for k in _whole(last)]
    levels = [(0.0, "0"), (0.5, "0.5"), (1.0, "1")]
    return _plot("Passed within k tries, and in all k", _axes(ticks, levels) + "".join(marks))


def intervals(parts: Sequence[dict[str, Any]], most: int = 14) -> str:
    """The mean of each slice with its interval."""
    known = [one for one in parts if one["mean"] is not None][:most]
    if len(known) < 2:
        return ""
    ends = [value for one in known for value in (one["low"], one["high"], one["mean"])]
    low: float = min([0.0, *(value for value in ends if value is not None)])
    high: float = max([1.0, *(value for value in ends if value is not None)])
    left, high_of = 130, 26 * len(known) + 40

    def at(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDE - left - _RIGHT)

    marks = [f'<line class="axis" x1="{at(low)}" x2="{at(high)}" y1="{high_of - 26}" '
             f'y2="{high_of - 26}"/>']  # fmt: skip
    for number, one in enumerate(known):
        y = 22 + 26 * number
        marks.append(_text(str(one["name"])[:20], left - 10, y + 4, "end"))
        if one["low"] is not None and one["high"] is not None:
            marks.append(f'<line class="line mark" x1="{at(one["low"]):.1f}" '
                         f'x2="{at(one["high"]):.1f}" y1="{y}" y2="{y}"/>')  # fmt: skip
        marks.append(f'<circle class="mark" cx="{at(one["mean"]):.1f}" cy="{y}" r="4"><title>'
                     f"{one['mean']:.3f}</title></circle>")  # fmt: skip
    for value in (low, (low + high) / 2, high):
        marks.append(_text(f"{value:.3g}", at(value), high_of - 10, "middle"))
    return _plot("Mean reward by slice", "".join(marks), high_of)


def _plot(title: str, inside: str, high: int = HIGH) -> str:
    name = html.escape(title)
    return (
        f'<figure><figcaption>{name}</figcaption><svg viewBox="0 0 {WIDE} {high}" role="img" '
        f'aria-label="{name}">{inside}</svg></figure>'
    )


def _axes(ticks: Sequence[tuple[float, str]], levels: Sequence[tuple[float, str]]) -> str:
    lines = [f'<line class="axis" x1="{_x(0)}" x2="{_x(1)}" y1="{_y(at):.1f}" y2="{_y(at):.1f}"/>'
             for at, _ in levels]  # fmt: skip
    below = [_text(text, _x(at), HIGH - 10, "middle") for at, text in ticks]
    beside = [_text(text, _LEFT - 8, _y(at) + 4, "end") for at, text in levels]
    return "".join([*lines, *below, *beside])


def _text(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _x(share: float) -> float:
    return _LEFT + share * (WIDE - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return HIGH - _BOTTOM - share * (HIGH - _TOP - _BOTTOM)


def _whole(last: int) -> list[int]:
    """Up to nine whole numbers from 1 to `last`."""
    step = math.ceil(last / 9)
    return sorted({1, last, *range(step, last, step)})
