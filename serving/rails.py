"""Guard rails of one canary: what became of both arms' requests, and whether a rail broke. Pure.

Enters what the gateway saw of each request; leaves counts, and a `Breach` once the challenger is
worse than a rail allows. Each rail has its share of the allowed error, so that a challenger within
all of them is taken out with probability `1 - confidence` at most, however long one watches.

A measure (seconds, dollars, tokens) becomes a rate: how often it lies above the champion's own 90th
percentile, the challenger's divided by the factor allowed first. The percentile is of the
champion's answers before, so that both rates are of the same, known line.
"""

from typing import NamedTuple

import msgspec

from flywheel.serving_section import ReleaseSection
from serving.observing import Seen
from serving.sequential import Counts, Rates

FAILED = ("failed", "cut", "fell_back")
_RECENT, _FIRST, _AGAIN = 500, 20, 20
"""Answers of the champion that a percentile is of, before there is one, and until the next one."""
_HIGH = 0.9
SAYS = {
    "errors": "failed",
    "refusals": "declined",
    "broken": "were not of the form asked for",
    "latency": "took long",
    "cost": "were costly",
    "tokens": "were long",
}
"""Each rail, and what its events are."""


class Line(msgspec.Struct):
    """Of one measure: what counts as much of it."""

    recent: list[float] = msgspec.field(default_factory=list)
    """The champion's last values."""
    at: float | None = None
    """None = too few values yet: nothing counts."""
    left: int = _FIRST
    """Values until it is drawn anew."""

    def add(self, value: float) -> None:
        self.recent.append(value)
        del self.recent[:-_RECENT]
        self.left -= 1
        if self.left <= 0:
            self.at = sorted(self.recent)[int(_HIGH * (len(self.recent) - 1))]
            self.left = _AGAIN


class Breach(NamedTuple):
    rail: str
    words: str


class Standing(NamedTuple):
    """How one rail stands, for people."""

    rail: str
    champion: Counts
    challenger: Counts
    allowed: str
    evidence: float
    """0 = none, 1 = it breaks: the logarithm of the capital against the challenger, as a share of
    what a breach takes."""


class Rails(msgspec.Struct):
    rates: dict[str, Rates] = msgspec.field(default_factory=lambda: {one: Rates() for one in SAYS})
    lines: dict[str, Line] = msgspec.field(
        default_factory=lambda: {one: Line() for one in ("latency", "cost", "tokens")}
    )

    def hear(self, seen: Seen, challenger: bool, section: ReleaseSection) -> None:
        """What was refused by us, or hung up on, says nothing of a model."""
        if seen.end in FAILED:
            self._count("errors", challenger, True)
        elif seen.end == "answered":
            self._count("errors", challenger, False)
            self._count("broken", challenger, seen.broken is not None)
            if seen.refusal is not None:
                self._count("refusals", challenger, seen.refusal)
            self._measure("latency", challenger, seen.total_s, section.latency)
            self._measure("cost", challenger, seen.cost_usd, section.cost)
            self._measure("tokens", challenger, seen.output_tokens, section.cost)

    def breach(self, section: ReleaseSection) -> Breach | None:
        """The first rail that broke; None = all hold."""
        for name, rates in self.rates.items():
            if rates.log_evidence(_slack(name, section), _alpha(section)) >= 0:
                return Breach(name, _words(name, rates, section))
        return None

    def standing(self, section: ReleaseSection) -> list[Standing]:
        import math

        needed = math.log(2 / _alpha(section))
        found = []
        for name, rates in self.rates.items():
            over = rates.log_evidence(_slack(name, section), _alpha(section))
            share = min(max((over + needed) / needed, 0.0), 1.0)
            found.append(
                Standing(name, rates.champion, rates.challenger, _allowed(name, section), share)
            )
        return found

    def _count(self, rail: str, challenger: bool, event: bool) -> None:
        rates = self.rates[rail]
        (rates.challenger if challenger else rates.champion).add(event)

    def _measure(self, rail: str, challenger: bool, value: float | None, factor: float) -> None:
        if value is None:
            return
        line = self.lines[rail]
        if line.at is not None:
            self._count(rail, challenger, (value / factor if challenger else value) > line.at)
        if not challenger:
            line.add(float(value))


def _alpha(section: ReleaseSection) -> float:
    return (1 - section.confidence) / len(SAYS)


def _slack(rail: str, section: ReleaseSection) -> float:
    slacks = {
        "errors": section.errors, "refusals": section.refusals, "broken": section.broken,
    }  # fmt: skip
    return slacks.get(rail, 0.0)


def _allowed(rail: str, section: ReleaseSection) -> str:
    if rail in ("errors", "refusals", "broken"):
        return f"{100 * _slack(rail, section):g} points more"
    return f"{section.latency if rail == 'latency' else section.cost:g} times the champion's"


def _words(rail: str, rates: Rates, section: ReleaseSection) -> str:
    mine, its = rates.challenger, rates.champion
    return (
        f"{mine.x} of its {mine.n} answers {SAYS[rail]}, {its.x} of the champion's {its.n}: more "
        f"than the guard rail {rail} allows ({_allowed(rail, section)})"
    )
