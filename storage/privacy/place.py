"""Where something personal or secret stands in a text, and the one look at it that all who search
share: most texts hold nothing, and that must be cheap to see."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from flywheel.data_section import Found

_RUN = re.compile(r"\d[\d \u00a0.()\-/]*")
CLOSE = 6
"""Digits that stand together, at least, for a number that is one person's."""


class Place(NamedTuple):
    start: int
    end: int
    kind: Found


class Glance(NamedTuple):
    low: str
    """The text in lower case, as long as it."""
    runs: tuple[tuple[int, int], ...]
    """Where digits stand, with what may stand between them."""
    close: tuple[tuple[int, int], ...]
    """Those of many digits."""
    longest: int
    """Characters of its longest word."""


def glance(text: str) -> Glance:
    low = text.lower()
    runs = tuple([match.span() for match in _RUN.finditer(text)])
    close = tuple(
        [
            (start, end)
            for start, end in runs
            if end - start >= CLOSE and sum(map(str.isdigit, text[start:end])) >= CLOSE
        ]
    )
    # A few letters have two in lower case: İ.
    low = low if len(low) == len(text) else text
    return Glance(low, runs, close, max(map(len, text.split()), default=0))


def around(look: Glance, width: int) -> Iterator[tuple[int, int]]:
    """Parts of the text that hold its close digits, and `width` characters on both sides of each;
    they do not overlap."""
    joined: list[tuple[int, int]] = []
    for start, end in look.close:
        start, end = max(0, start - width), end + width
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    yield from joined


def cues_in(low: str, cues: tuple[str, ...]) -> list[str]:
    """Those that the text has: mostly none, which must cost next to nothing."""
    return [cue for cue in cues if cue in low]


def cued(low: str, cue: str) -> Iterator[int]:
    """Where `cue` stands."""
    at = low.find(cue)
    while at >= 0:
        yield at
        at = low.find(cue, at + 1)


Recogniser: TypeAlias = Callable[[str, Glance], Iterator[Place]]
