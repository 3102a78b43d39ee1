"""Deployments of a project: each version with its part, its evidence and what was decided of it.

Enters the ledger, the routing file, what MLflow's file lists and the traffic; leaves one `Version`
each, the newest first, and what an action on one would do, in words.
"""

from collections.abc import Sequence
from typing import Literal

from app.views.ledger_data import Ledger, Turn, of_canary, took_over, took_over_by
from flywheel.home import Home
from flywheel.lineage import Decision, Deployment, Evaluation
from flywheel.records import Record
from storage.glance import Glance, Traffic

Part = Literal["champion", "previous", "challenger", "waiting", "candidate", "replaced", "base"]
"""waiting = passed its gates and waits for a person; candidate = never answered; replaced = did."""


class Version(Record, frozen=True, kw_only=True):
    number: int
    name: str
    part: Part
    share: float | None
    """Of the requests that it answers by the routing file; None = nothing is routed yet."""
    evaluation: Evaluation | None
    """The newest comparison in which it was the candidate."""
    last: Decision | None
    """What was decided of it last; a rollback is decided of both, see `decided`."""
    estimate: Decision | None
    """The newest estimate on recent traffic in which it was the candidate; it decides nothing."""
    since: int | None
    """When it began to answer, the last time."""
    turn: Turn | None
    traffic: Traffic | None
    registered: bool
    """MLflow lists it."""


def versions(
    home: Home, project: str, known: Ledger, turns: Sequence[Turn], glance: Glance | None
) -> list[Version]:
    from serving.routing import read
    from storage.registered import registered

    listed = registered(home, project).versions
    numbers = {int(one) for one in listed if one.isdigit()}
    numbers |= {one.version for one in known.deployments}
    for each in known.evaluations:
        numbers |= _number(each.candidate, project)
    route = read(home).projects.get(project)
    parts: dict[str, tuple[Part, float]] = {}
    if route is not None:
        share = route.share if route.challenger else 0.0
        routed: tuple[tuple[Deployment | None, Part, float], ...] = (
            (route.challenger, "challenger", share),
            (route.previous, "previous", 0.0),
            (route.champion, "champion", 1.0 - share),
        )
        for deployment, part, answered in routed:
            if deployment is not None:
                parts[deployment.name] = (part, answered)
                numbers.add(deployment.version)
    return [
        _version(number, project, known, turns, glance, parts, str(number) in listed)
        for number in sorted(numbers, reverse=True)
    ]


def _number(name: str, project: str) -> set[int]:
    head, _, number = name.rpartition("-v")
    return {int(number)} if head == project and number.isdigit() else set()


def _version(
    number: int,
    project: str,
    known: Ledger,
    turns: Sequence[Turn],
    glance: Glance | None,
    parts: dict[str, tuple[Part, float]],
    registered: bool,
) -> Version:
    name = f"{project}-v{number}"
    said = [
        one
        for one in known.decisions
        if (one.deployment == name and not of_canary(one))
        or (one.outcome == "rolled_back" and one.replaced == name)
    ]
    answered = [one for one in took_over(known) if one.deployment == name]
    compared = [one for one in known.evaluations if one.candidate == name]
    estimates = [
        one for one in known.decisions
        if one.gate == "estimate" and one.evidence.get("candidate") == name
    ]  # fmt: skip
    default: Part = (
        "base" if number == 0
        else "replaced" if answered
        else "waiting" if said and said[-1].outcome == "waiting"
        else "candidate"
    )  # fmt: skip
    part, share = parts.get(name, (default, 0.0))
    runs = {one.run_id for one in compared} | {one.run_id for one in said}
    return Version(
        number=number,
        name=name,
        part=part,
        share=share if parts else None,
        evaluation=compared[-1] if compared else None,
        last=said[-1] if said else None,
        estimate=estimates[-1] if estimates else None,
        since=answered[-1].at if answered else None,
        turn=next((one for one in turns if one.run_id in runs), None),
        traffic=next((one for one in glance.traffic if one.deployment == name), None)
        if glance
        else None,
        registered=registered,
    )


def decided(version: Version) -> str:
    """What was decided of it last and by whom, as seen from it: of a rollback's two deployments
    one took over and the other was taken away. "" = nothing was."""
    if version.last is None:
        return ""
    if version.last.outcome == "rolled_back" and version.last.deployment == version.name:
        return took_over_by(version.last)
    between = ", by" if version.last.outcome in ("waiting", "canary") else " by"
    return f"{version.last.outcome.replace('_', ' ')}{between} {version.last.by}"


class Reign(Record, frozen=True, kw_only=True):
    """A stretch of time in which one deployment was champion."""

    deployment: str
    begin: int
    end: int | None
    """None = it still is."""
    why: Decision


def reigns(known: Ledger) -> list[Reign]:
    """By time."""
    taken = took_over(known)
    ends: list[int | None] = [one.at for one in taken[1:]]
    return [
        Reign(deployment=one.deployment or "", begin=one.at, end=end, why=one)
        for one, end in zip(taken, [*ends, None] if taken else [], strict=True)
    ]


def ledger_rows(known: Ledger, outcomes: Sequence[str] = (), text: str = "") -> list[Decision]:
    """Decisions, the newest first.

    Args:
        outcomes: only these; () = all.
        text: only those whose reason, names, gate or author hold it, whatever its case.
    """
    wanted = text.casefold().strip()
    return [
        one
        for one in reversed(known.decisions)
        if (not outcomes or one.outcome in outcomes)
        and wanted
        in " ".join(
            filter(None, (one.reason, one.by, one.gate, one.deployment, one.replaced, one.run_id))
        ).casefold()
    ]


def of_promotion(version: Version, champion: str) -> str:
    """What promoting it would do, in words."""
    return (
        f"Promote {version.name}? It answers the held-out problems beside {champion}, and goes "
        "through the learning gate and the serving gate. If both let it through it answers all "
        f"requests from then on, and {champion} stays loaded as the previous one. If one refuses, "
        "nothing changes."
    )


def of_release(name: str, champion: str, share: float) -> str:
    if not share:
        return f"Take {name} out? {champion} answers all requests again, from the next one on."
    return (
        f"Let {name} answer {share:.0%} of the requests? It is loaded and checked by the serving "
        f"gate first; {champion} answers the rest. A conversation stays with the one that began "
        "it. After each grading it is promoted, rolled back or goes on, as its reward shows; a "
        "broken guard rail takes it out within seconds."
    )


def of_rollback(champion: str, previous: str) -> str:
    return (
        f"Roll back? {previous} answers the next request instead of {champion}, which becomes the "
        "previous one: the same button puts it back. The next turn does not promote "
        f"{champion} again over the same data."
    )


def command(name: str, folder: str, by: str, reason: str, **options: str) -> list[str]:
    """The arguments of the `flywheel` command that does it. Values are joined to their options, so
    that none of them is taken for an option itself; one without a value is a flag."""
    given = [f"--{key}={value}" if value else f"--{key}" for key, value in options.items()]
    if reason.strip():
        given.append(f"--reason={reason.strip()}")
    return [name, folder, *given, f"--by={by}"]
