"""What people's verdicts come to: labels, how far reviewers agree, and how far each can be trusted.

Enters a project with its [labels]; leave one label a reviewed answer, Krippendorff's alpha, and a
line a reviewer. Read of the feedback itself, so that a verdict counts as soon as it is committed.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from flywheel.data_section import LabelsSection
from flywheel.home import Home
from flywheel.ids import seed_of
from flywheel.plain import many
from flywheel.records import Record
from flywheel.reviews import GOLD, Label, State, label_of
from storage.database import reading
from storage.verdicts import ANSWER, reviews

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 500
LEAST_UNITS = 5
"""Fewer answers that two people judged say nothing about agreement."""


class Vote(Record, frozen=True, kw_only=True):
    trace_id: str
    by: str
    good: bool
    """Accepted; rejected and corrected ones are not."""
    settles: bool
    """Given in sight of what others said."""
    at: int


class Alpha(Record, frozen=True, kw_only=True):
    """Krippendorff's alpha: 1 = all agree, 0 = as chance would have it."""

    alpha: float | None
    low: float | None = None
    high: float | None = None
    units: int = 0
    """Answers that two people or more judged."""
    reason: str | None = None
    """Why it is None."""


class Reviewer(Record, frozen=True, kw_only=True):
    name: str
    reviewed: int
    gold_seen: int
    gold_right: int
    accuracy: float | None
    """Share of the gold items judged right; None = none was seen."""
    low: float | None
    """Ends of its interval (Wilson, "Probable Inference", JASA 22, 1927), at 95%."""
    high: float | None
    common: int
    """Verdicts on answers that somebody else judged too."""
    agrees: float | None
    """Share of these in which most of the others said the same; None = too few."""


class Report(Record, frozen=True, kw_only=True):
    answers: dict[State, int]
    """Reviewed answers by what their label is."""
    wanted: int
    """Reviewers an answer."""
    gold: int
    alpha: Alpha
    trusted: bool | None
    """Whether alpha reaches [labels] agreement; None = it is not known."""
    reviewers: tuple[Reviewer, ...]


def votes(home: Home, project: str) -> list[Vote]:
    """Every verdict that stands, one a person and trace, by trace and person."""
    with reading(home) as database:
        rows = [] if database is None else database.execute(_VOTES, [project]).fetchall()
    return [
        Vote(trace_id=one, by=by, good=good, settles=settles, at=at)
        for one, by, good, settles, at in rows
    ]


def gold(home: Home, project: str) -> dict[str, bool]:
    """Trace -> whether its answer is known to be good."""
    with reading(home) as database:
        rows = [] if database is None else database.execute(_GOLD, [project]).fetchall()
    return {one: good == "true" for one, good in rows if good in ("true", "false")}


def labels(found: list[Vote], section: LabelsSection) -> dict[str, Label]:
    """Trace -> its label."""
    by_trace: dict[str, list[Vote]] = defaultdict(list)
    for one in found:
        by_trace[one.trace_id].append(one)
    return {trace_id: _label(each, section) for trace_id, each in by_trace.items()}


def report(home: Home, project: str, section: LabelsSection) -> Report:
    found, known = votes(home, project), gold(home, project)
    states = [one.state for one in labels(found, section).values()]
    blind = [one for one in found if not one.settles]
    alpha = agreement(blind)
    return Report(
        answers={state: states.count(state) for state in ("open", "agreed", "disputed", "settled")},
        wanted=section.reviewers,
        gold=len(known),
        alpha=alpha,
        trusted=None if alpha.alpha is None else alpha.alpha >= section.agreement,
        reviewers=tuple(reliability(blind, known)),
    )


def agreement(found: list[Vote]) -> Alpha:
    """Krippendorff's alpha of accepted or not, over answers that two people or more judged.

    alpha = 1 - D_observed / D_expected, nominal (Krippendorff, "Computing Krippendorff's
    Alpha-Reliability", 2011); its interval by drawing the answers anew (Efron & Tibshirani, 1993).
    """
    import numpy as np

    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in found:
        counts[one.trace_id][one.good] += 1
    table = np.array([counts[key] for key in sorted(counts) if sum(counts[key]) > 1])
    if len(table) < LEAST_UNITS:
        return Alpha(alpha=None, units=len(table), reason=(
            f"{many(len(table), 'answer')} judged by two people, at least {LEAST_UNITS} are needed"
        ))  # fmt: skip
    alpha = _alpha(table)
    if alpha is None:
        return Alpha(alpha=None, units=len(table), reason="all were judged alike: answers of both "
                     "kinds must be reviewed")  # fmt: skip
    generator = np.random.default_rng(seed_of(table.tolist()))
    drawn = [_alpha(table[generator.integers(0, len(table), len(table))]) for _ in range(RESAMPLES)]
    known = [one for one in drawn if one is not None]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) > 0.9 * RESAMPLES else (None, None)
    return Alpha(
        alpha=alpha,
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        units=len(table),
    )


def reliability(found: list[Vote], known: dict[str, bool]) -> list[Reviewer]:
    """A line a reviewer, by name. What was said in sight of others' words does not belong here."""
    by_trace: dict[str, list[Vote]] = defaultdict(list)
    for one in found:
        by_trace[one.trace_id].append(one)
    people = sorted({one.by for one in found})
    return [_reviewer(name, [v for v in found if v.by == name], by_trace, known) for name in people]


def _reviewer(
    name: str, mine: list[Vote], by_trace: dict[str, list[Vote]], known: dict[str, bool]
) -> Reviewer:
    from scipy.stats import binomtest

    seen = [one for one in mine if one.trace_id in known]
    right = sum(one.good == known[one.trace_id] for one in seen)
    ends = binomtest(right, len(seen)).proportion_ci(method="wilson") if seen else None
    common = same = 0
    for one in mine:
        others = [other.good for other in by_trace[one.trace_id] if other.by != name]
        mean = sum(others) / len(others) if others else 0.5
        if mean != 0.5:
            common, same = common + 1, same + (one.good == (mean > 0.5))
    return Reviewer(
        name=name,
        reviewed=len(mine),
        gold_seen=len(seen),
        gold_right=right,
        accuracy=right / len(seen) if seen else None,
        low=float(ends.low) if ends else None,
        high=float(ends.high) if ends else None,
        common=common,
        agrees=same / common if common >= LEAST_UNITS else None,
    )


def _label(each: list[Vote], section: LabelsSection) -> Label:
    deciding = [one for one in each if one.settles]
    last = max(deciding, key=lambda one: one.at, default=None)
    return label_of(
        [float(one.good) for one in each],
        None if last is None else float(last.good),
        reviewers=section.reviewers,
        adjudicate=section.adjudicate,
    )


def _alpha(table: "NDArray[np.int64]") -> float | None:
    """table: [answers, 2] of verdicts. None where all are alike."""
    import krippendorff

    if not table.sum(axis=0).all():
        return None
    return float(krippendorff.alpha(value_counts=table, level_of_measurement="nominal"))


_VOTES = f"""SELECT trace_id, said_by, good, settles, said FROM ({reviews("project = ?")})
    WHERE said_by IS NOT NULL ORDER BY trace_id, said_by"""
_GOLD = f"""SELECT {ANSWER} AS answer, body ->> '$.value' FROM feedback
    WHERE project = ? AND target_kind = 'trace' AND name = '{GOLD}'
    QUALIFY row_number() OVER (PARTITION BY answer ORDER BY said DESC, id DESC) = 1
    ORDER BY answer"""
