"""Problems mined from a project's traffic, beyond what a turn takes: clustered and picked, stored
for the turns that follow, and shown.

Enter a project and a home; leave problems in the store, whose picks the next turns sample first.
Invariant: mining again gives the same problems the same sides; only counts and picks may change.
"""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from environments.picking import PassRate, Picked
from flywheel.consent import why_not
from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.progress import report
from flywheel.project import Project
from flywheel.records import Problem

if TYPE_CHECKING:
    from environments.mining import Traffic

PICKED = ("cluster", "difficulty", "tried", "pick")
"""What this adds to a problem beside `traffic`."""
NO_ANSWERS = (
    "only problems with a known answer are picked: send feedback of kind `demonstration`, correct "
    "or accept answers on the dashboard's Review page, or use an environment whose rewards need no "
    "answer (`@reward(truth=False)`)"
)
_NS = 1_000_000_000
_UNITS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}


def mine_traffic(
    home: Home, project: Project, *, limit: int | None = None, since: int | None = None
) -> dict[str, Any]:
    """Mines, clusters and picks; stores all problems.

    Args:
        limit: problems picked, both sides together; None = what one turn takes.
        since: only traffic that began then or later counts.

    Returns: what `flywheel problems mine --json` prints.
    """
    from environments.mining import Traffic
    from environments.picking import pick
    from storage.committer import commit
    from storage.graded import pass_rates
    from storage.inbox import Inbox
    from storage.snapshots import snapshot
    from tasks.turns import champion_of, environment_of

    commit(home)
    environment = environment_of(project)
    traffic = Traffic(environment, since=since)
    sequence = snapshot(home, project.name).sequence
    read_into(traffic, home, project, project.name, sequence, time.time_ns())
    posed = sided_as_before(traffic, home, project)
    asked = [one for one in posed if one.attributes["traffic"]]
    champion = champion_of(project).name
    rates = {
        id: PassRate(share, answers)
        for id, (share, answers) in pass_rates(home, project.name, champion).items()
    }
    report("cluster", 0, len(asked))
    picked = pick(
        asked,
        rates,
        limits(project, limit),
        needs_truth=all(one.needs_truth for one in environment.methods if one.mark.weight),
        near_duplicate=project.curate.near_duplicate,
    )
    report("cluster", len(asked), len(asked))
    unasked = [one for one in posed if not one.attributes["traffic"]]
    Inbox(home).append([*picked.problems, *unasked])
    commit(home)
    left_out = dict(sorted(traffic.left_out.items()))
    return _told(project, traffic.traces, picked, champion, left_out)


def sided_as_before(traffic: "Traffic", home: Home, project: Project) -> list[Problem]:
    """The traffic's problems; those that the store has stay on the side that they have there."""
    from environments.mining import sided
    from storage.queries import problems

    settled = {one.id: one.split for one in problems(home, traffic.environment.name)}
    return sided(traffic, project.problems, project.curate.near_duplicate, settled)


def read_into(
    traffic: "Traffic", place: Home, project: Project, of: str, sequence: int, at: int | None
) -> None:
    """Gives it the recorded traces of project `of` and their feedback, a batch at a time; not those
    that may not be learnt from at that moment, which are counted."""
    from environments.mining import MINED
    from storage.judgements import feedback_for
    from storage.queries import traces

    granted = project.retention.consent == "granted"
    for every in traces(place, project=of, origin=MINED, snapshot=sequence, batch=2000):
        batch = [one for one in every if why_not(one, granted=granted, at=at) is None]
        if went := len(every) - len(batch):
            traffic.left_out["may not be learnt from: consent or expiry"] += went
        said = feedback_for(place, batch, snapshot=sequence, labels=project.labels)
        for trace in batch:
            traffic.add(trace, said.get(trace.id, ()))


def limits(project: Project, limit: int | None) -> dict[Any, int]:
    section = project.problems
    if limit is None:
        return {"train": section.max_train, "heldout": section.max_heldout}
    heldout = round(limit * section.heldout_share)
    return {"train": limit - heldout, "heldout": heldout}


def _told(
    project: Project, traces: int, picked: Picked, champion: str, left_out: dict[str, int]
) -> dict[str, Any]:
    chosen = [one for one in picked.problems if "pick" in one.attributes]
    unanswered = sum(one.answer is None for one in picked.problems)
    return {
        "project": project.name,
        "champion": champion,
        "traces": traces,
        "problems": len(picked.problems),
        "heldout": sum(one.split == "heldout" for one in picked.problems),
        "without_answer": unanswered,
        "remedy": None if chosen or not unanswered else NO_ANSWERS,
        "picked": {side: sum(one.split == side for one in chosen) for side in ("train", "heldout")},
        "left_out": left_out,
        "clusters": [one._asdict() for one in picked.clusters],
    }


def stored(home: Home, project: Project) -> list[Problem]:
    """The project's problems: what is picked first, then by how often it is asked."""
    from storage.queries import problems
    from tasks.turns import environment_of

    def order(problem: Problem) -> tuple[float, int, str]:
        told = problem.attributes
        return told.get("pick", float("inf")), -int(told.get("traffic", 0)), problem.id

    return sorted(problems(home, environment_of(project).name), key=order)


def found(home: Home, id: str) -> Problem:
    """The problem of an id, or of the beginning of one.

    Raises:
        UsageError: there is none, or there are several.
    """
    from storage.queries import problems

    near = [one for one in problems(home) if one.id.startswith(id)] if len(id) >= 4 else []
    if len(near) != 1:
        told = f"{len(near)} problems begin so" if near else "no problem has this id"
        raise UsageError(f"{id}: {told}; `flywheel problems list` names them")
    return near[0]


def moment_of(text: str) -> int:
    """Nanoseconds since the epoch of a date (2026-11-03, 2026-11-03T08:00) or a span of time back
    from now (12h, 7d, 4w). A date without a zone is UTC.

    Raises:
        UsageError: it is neither.
    """
    count, unit = text[:-1], text[-1:]
    if unit in _UNITS and count.isdecimal():
        back = int(count) * _UNITS[unit]
        return int(datetime.now(UTC).timestamp() - back) * _NS
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no time: a date (2026-11-03) or 12h, 7d, 4w") from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * _NS
