"""How a release stands: the reward test, the guard rails, and what they say. It changes nothing.

Enters a project whose challenger answers a share; leaves a `Standing` with its verdict. Whoever
acts on it (`tasks/release.py`) and whoever shows it (`app/views`) ask the same function.

A unit (of a shadow, a pair of answers) counts once: with the reward and in the place in which it
was first counted, whatever is graded anew or comes in late. Those that were counted stand in the
home; without that a test that looks often would promise too much.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from flywheel import durable
from flywheel.home import Home
from flywheel.records import Record
from flywheel.serving_section import ReleaseSection
from serving.rails import Rails
from serving.routing import ProjectRoute, is_external, read
from serving.sequential import Interval, Unit, difference, paired
from serving.watch import told, watched
from storage.released import Assigned, Mirrored, arms, mirrored

One = TypeVar("One", Assigned, Mirrored)
Says = Literal["promote", "roll back", "not enough evidence", "go on"]


class Standing(Record, frozen=True, kw_only=True):
    project: str
    champion: str
    challenger: str
    share: float
    since: int | None
    """When it began; None = nobody recorded it, and there is no verdict."""
    hours: float | None
    units: tuple[int, int]
    """Graded conversations of the champion and of the challenger."""
    ungraded: tuple[int, int]
    means: tuple[float | None, float | None]
    """Mean reward of each arm; None = no graded conversation."""
    low: float
    high: float
    """Of the difference, challenger less champion: holds however often one looks."""
    confidence: float
    margin: float
    outside: int
    """Rewards outside 0 to 1; they count as the nearer end."""
    rails: list[dict[str, Any]]
    """As `serving.watch.told`; [] = no server has counted anything yet."""
    says: Says
    reason: str


class ShadowStanding(Record, frozen=True, kw_only=True):
    project: str
    champion: str
    shadow: str
    version: int | None
    """None = it is a provider's: a person decides what becomes of it."""
    share: float
    pairs: int
    """Requests that both answered, both graded."""
    difference: float | None
    """Mean reward of the shadow's answers less that of those that users saw."""
    low: float
    high: float
    says: Literal["canary", "take out", "go on"]
    reason: str


def shadow_standing(
    home: Home, project: str, section: ReleaseSection, *, count: bool = False
) -> ShadowStanding | None:
    """The shadow that runs; None = none does. A shadow is to find out what is surely worse: it goes
    on to its canary once enough is graded and it is not.

    Args:
        count: as of `standing`.
    """
    route = read(home).projects.get(project)
    if route is None or route.shadow is None or not route.shadow_share:
        return None
    champion, name = route.champion.name, route.shadow.name
    pairs = kept_first(
        home.releases / f"{project}.mirrored.json",
        Paired(champion=champion, shadow=name),
        mirrored(home, project, champion, name),
        keep=count,
    )
    found = paired([one.shadow - one.served for one in pairs], section.confidence)
    what = f"its reward less what users saw is {found.low:+.3f} to {found.high:+.3f}"
    what += f", over {found.units} graded requests"
    says: Literal["canary", "take out", "go on"] = "go on"
    if found.high < -section.margin:
        says, what = "take out", f"{name} is worse unseen: {what}"
    elif found.units >= section.min_requests:
        says, what = "canary", f"{name} is not surely worse unseen: {what}"
    return ShadowStanding(
        project=project,
        champion=champion,
        shadow=name,
        version=None if is_external(route.shadow) else route.shadow.version,
        share=route.shadow_share,
        pairs=found.units,
        difference=found.difference,
        low=found.low,
        high=found.high,
        says=says,
        reason=what,
    )


class Counted(Record, frozen=True, kw_only=True):
    """What was counted of one canary, in that order."""

    champion: str
    challenger: str
    since: int | None
    units: tuple[Assigned, ...] = ()


class Paired(Record, frozen=True, kw_only=True):
    """What was counted of one shadow, in that order."""

    champion: str
    shadow: str
    units: tuple[Mirrored, ...] = ()


def standing(
    home: Home, project: str, section: ReleaseSection, *, count: bool = False
) -> tuple[Standing, list[Interval]] | None:
    """The release that runs and its interval over time; None = none runs.

    Args:
        count: what is graded by now keeps its place from now on: for whoever acts on the verdict.
    """
    route = read(home).projects.get(project)
    if route is None or route.challenger is None or not route.share:
        return None
    found = arms(home, project, route.champion.name, route.challenger.name, route.since or 0)
    assigned = kept_first(
        home.releases / f"{project}.counted.json",
        Counted(champion=route.champion.name, challenger=route.challenger.name, since=route.since),
        found.assigned,
        keep=count,
    )
    units = [Unit(one.challenger, one.probability, one.score) for one in assigned]
    interval, curve = difference(units, section.confidence)
    hours = None if route.since is None else (time.time_ns() - route.since) / 3.6e12
    counts = (sum(not one.challenger for one in units), sum(one.challenger for one in units))
    says, reason = verdict(route, section, interval, counts, hours)
    kept = watched(home, project)
    rails = told(kept.rails if kept and kept.of(route) else Rails(), section)
    return Standing(
        project=project,
        champion=route.champion.name,
        challenger=route.challenger.name,
        share=route.share,
        since=route.since,
        hours=hours,
        units=counts,
        ungraded=found.ungraded,
        means=(_mean(assigned, False), _mean(assigned, True)),
        low=interval.low,
        high=interval.high,
        confidence=section.confidence,
        margin=section.margin,
        outside=sum(not 0 <= one.score <= 1 for one in assigned),
        rails=rails,
        says=says,
        reason=reason,
    ), curve


def verdict(
    route: ProjectRoute,
    section: ReleaseSection,
    interval: Interval,
    counts: tuple[int, int],
    hours: float | None,
) -> tuple[Says, str]:
    """
    Args:
        counts: graded conversations of the champion and of the challenger.
    """
    name = route.challenger.name if route.challenger else ""
    if route.since is None or hours is None:
        return "go on", f"nobody recorded when {name} began: `flywheel release` begins it anew"
    what = (
        f"its reward less {route.champion.name}'s is {interval.low:+.3f} to {interval.high:+.3f}, "
        f"after {counts[1]} graded conversations of its own and {counts[0]} of the other"
    )
    if interval.high < -section.margin:
        return "roll back", f"{name} is worse: {what}"
    if interval.low > -section.margin and counts[1] >= section.min_requests:
        better = "not worse by the margin" if section.margin else "better"
        return "promote", f"{name} is {better}: {what}"
    if counts[1] >= section.max_requests:
        return "not enough evidence", f"after {section.max_requests} graded conversations, {what}"
    if hours >= section.max_hours:
        return "not enough evidence", f"after {section.max_hours:g} hours, {what}"
    if interval.low > -section.margin:
        return "go on", f"{what}; it is promoted after {section.min_requests}"
    return "go on", f"{what}: both sides of {-section.margin or 0:+g} are possible"


def kept_first(path: Path, begun: Any, found: Sequence[One], *, keep: bool) -> Sequence[One]:
    """Those that were counted before, then the new ones by time.

    Args:
        begun: whose they are, without any; another one than the file's begins anew.
        keep: whether the new ones keep their place from now on.
    """
    kept: Any = begun
    with contextlib.suppress(OSError, msgspec.DecodeError):
        kept = msgspec.json.decode(path.read_bytes(), type=type(begun))
    if msgspec.structs.replace(kept, units=()) != begun:
        kept = begun
    there: set[str] = {one.unit for one in kept.units}
    units = (*kept.units, *(one for one in found if one.unit not in there))
    if keep and len(units) > len(kept.units):
        durable.write(path, msgspec.json.encode(msgspec.structs.replace(begun, units=units)))
    return units


def _mean(assigned: Sequence[Assigned], challenger: bool) -> float | None:
    scores = [one.score for one in assigned if one.challenger == challenger]
    return sum(scores) / len(scores) if scores else None
