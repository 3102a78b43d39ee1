"""The number that an answer ends in, read as people and models write it.

Enter: an answer's text. Leaves: an exact fraction. Invariant: where an answer names several numbers
as its final one it has none: who hedges is not right.
"""

import re
from fractions import Fraction

_GROUPS = r"\d{1,3}(?:[,\u202f\u00a0']\d{3})+(?!\d)"
_PLAIN = rf"(?:{_GROUPS}|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(rf"(?<![\w.^])(?P<sign>[-−–+]\s?)?[$€£¥]?\s?(?P<value>{_PLAIN})"
                     rf"(?:[eE](?P<power>[+-]?\d{{1,2}})|\s?/\s?(?P<below>{_PLAIN}))?"
                     r"(?!\d)")  # fmt: skip
_LATEX = re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_MARKED = re.compile(r"^[ \t]*#{4}[ \t]*(\S[^\n]*)$", re.MULTILINE)
_SAID = re.compile(r"(?:answer|result|total)\s*(?:is|=|:)\s*([^\n]+?)(?:\.(?=\s|$)|$)", re.I | re.M)
_MIXED = re.compile(r"(?<![\d./])(\d+)\s+(\d+)\s*/\s*(\d+)")


def final_number(text: str) -> Fraction | None:
    """After the last `####`, in the last \\boxed{}, after the last "answer is", else the last of
    all. Of an equation, what is after its last sign. None = there is none, or several."""
    for place in (_MARKED, _BOXED, _SAID):
        if found := place.findall(text):
            numbers = set(numbers_in(found[-1].rpartition("=")[2]))
            return numbers.pop() if len(numbers) == 1 else None
    everywhere = numbers_in(text)
    return everywhere[-1] if everywhere else None


def marked(text: str) -> bool:
    """Whether the last line is `#### ` and one number."""
    lines = text.strip().splitlines()
    found = _MARKED.fullmatch(lines[-1]) if lines else None
    return found is not None and len(numbers_in(found[1])) == 1


def numbers_in(text: str) -> list[Fraction]:
    """All numbers of a text, in its order: 1,234.50, −3, $5, 3/4, 1 1/2, \\frac{3}{4}, 5%."""
    text = re.sub(r"\\[,;! ]|[*_]{2}|\\text\{[^{}]*\}|\\left|\\right", "", text)
    text = _LATEX.sub(r"\1/\2", text.replace("\\$", "$"))
    text = _MIXED.sub(lambda m: f"{int(m[1]) * int(m[3]) + int(m[2])}/{m[3]}", text)
    found = []
    for match in _NUMBER.finditer(text):
        value, below = (_exact(match[name]) for name in ("value", "below"))
        if value is None or below == 0:
            continue
        negative = (match["sign"] or "").strip() in ("-", "−", "–")
        power = Fraction(10) ** int(match["power"] or 0)
        found.append((-value if negative else value) * power / (below or 1))
    return found


def _exact(text: str | None) -> Fraction | None:
    if text is None or len(text) > 60:
        return None
    return Fraction(re.sub(r"[^\d.]", "", text))
