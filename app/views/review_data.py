"""What a review becomes, and how it is saved: once, through the inbox, by somebody who may.

Enter a trace, a verdict and who gives it; leaves one segment named by the one-time token, with the
feedback and the human grade in it. Nothing is saved of a trace that is not here any more or is
another project's, nor of an item that somebody else has taken.
"""

import json
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from app.actions import may, note
from app.people import Person
from flywheel import once
from flywheel.errors import FlywheelError, UsageError
from flywheel.home import Home
from flywheel.ids import canonical
from flywheel.records import Feedback, Grade
from flywheel.reviews import NAME, PERSON, SETTLER, SETTLES, Verdict
from storage import leases
from storage.inbox import Inbox
from storage.reviews import Pair

if TYPE_CHECKING:
    from environments.define import Environment

LONGEST = 200_000
"""Characters of a correction or comment."""
_COMPARED = "compared:"


class Vanished(FlywheelError):
    """The trace was erased, or never was, when its review came to be saved."""


class Taken(FlywheelError):
    """Somebody else took the item after this page's lease had run out."""


class Offered(NamedTuple):
    """An answer in the form that the environment reads as its truth."""

    value: Any
    """Of the feedback: the text, or the JSON that it is."""
    truth: Any
    """What the environment makes of it; None = no truth."""
    note: str
    """Why there is none, or why it is not known here."""


class Saved(NamedTuple):
    """What was saved, so that it can be taken back."""

    token: str
    records: tuple[Feedback | Grade, ...]
    items: tuple[str, ...]
    """That must be this page's, to the leases."""
    words: str


def judge(
    project: str, trace_id: str, verdict: Verdict, value: Any, *, by: str, token: str,
    after: int = 0, comment: str = "", tags: Sequence[str] = (), settles: bool = False,
) -> list[Feedback | Grade]:  # fmt: skip
    """The records of a verdict.

    Args:
        settles: it was given in sight of what the others said, and stands instead.
        value: the whole answer as it should have been, of `accepted` and `corrected`. None = an
            accepted one that has no text to be it.
        after: when this person last said something of it; what is said now is later, whatever the
            clock shows.
    """
    at = max(time.time_ns(), after + 1)
    about: dict[str, Any] = {"review": token, "verdict": verdict}
    if comment:
        about["comment"] = comment[:LONGEST]
    if settles:
        about[SETTLES] = True
    withdrawn = verdict == "withdrawn"
    said = Feedback(project=project, target=trace_id, name=NAME, value=verdict == "accepted",
                    kind="boolean", by=by, at=at, attributes=about)  # fmt: skip
    if withdrawn:
        said = msgspec.structs.replace(said, value="withdrawn", kind="category")
    elif verdict != "rejected" and value is not None:
        said = msgspec.structs.replace(said, value=value, kind="demonstration")
    grade = Grade(
        trace_id=trace_id, reward=NAME, weight=0.0 if withdrawn else 1.0, kind="human",
        value=None if withdrawn else float(verdict == "accepted"), grader=PERSON + by,
        reason=f"{verdict} by {by}" + (f": {comment[:2000]}" if comment else ""),
        confirmed_by=None if withdrawn else "human", at=at,
    )  # fmt: skip
    graded = [grade]
    if settles:  # what the same person had said before is part of it
        own = msgspec.structs.replace(grade, weight=0.0, value=None, confirmed_by=None)
        graded = [msgspec.structs.replace(grade, grader=SETTLER + by), own]
    more = remarks(project, trace_id, by=by, token=token, after=after, tags=tags)
    return [said, *graded, *more]


def remarks(
    project: str, trace_id: str, *, by: str, token: str, after: int = 0, comment: str = "",
    tags: Sequence[str] = (),
) -> list[Feedback]:  # fmt: skip
    """Tags and a comment, without a verdict."""
    at = max(time.time_ns(), after + 1)
    same: dict[str, Any] = {"project": project, "target": trace_id, "by": by, "at": at,
                            "attributes": {"review": token}}  # fmt: skip
    found = [
        Feedback(name=f"tag:{tag[:80]}", value=True, kind="boolean", **same)
        for tag in dict.fromkeys(one.strip() for one in tags)
        if tag
    ]
    if comment.strip():
        found.append(Feedback(name="comment", value=comment[:LONGEST], kind="text", **same))
    return found


def compare(
    project: str, pair: Pair, better: str | None, *, by: str, token: str
) -> list[Feedback | Grade]:
    """Which of two answers is better; None = neither."""
    at = time.time_ns()
    found: list[Feedback | Grade] = []
    for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
        value = "equal" if better is None else ("better" if better == one else "worse")
        found.append(
            Feedback(
                project=project, target=one, name=_COMPARED + other, value=value,
                kind="category", by=by, at=at,
                attributes={"review": token, "about": pair.about},
            )
        )  # fmt: skip
    return found


def save(
    home: Home, project: str, person: Person, saved: Saved, *, local: bool, holder: str
) -> Saved | None:
    """Saves; None = this token saved before, and nothing was done.

    Raises:
        Refused: the person is no reviewer now.
        Vanished: a trace of it is gone; nothing was saved.
        Taken: an item of it is somebody else's now; nothing was saved.
        UsageError: a trace of it is another project's; nothing was saved.
        Full, Busy: nothing was saved, and the token is good still.
    """
    person = may(home, person, "reviewer", local=local)
    _check_traces(home, project, saved.records)
    for item in saved.items:
        # Renewed, not only looked at: nobody may take it between here and the segment.
        if leases.renew(home, project, item, by=person.name, holder=holder, again=True):
            continue
        if once.spent(home, saved.token):
            return None
        raise Taken(_who_has(home, project, item, person))
    if not once.spend(home, saved.token):
        return None
    try:
        Inbox(home).append(list(saved.records), name=f"review-{saved.token}")
    except BaseException:
        once.give_back(home, saved.token)
        raise
    for item in saved.items:
        leases.saved(home, project, item, by=person.name, holder=holder)
    note(home, person, saved.words, project=project, items=" ".join(saved.items),
         segment=f"review-{saved.token}")  # fmt: skip
    commit_soon(home)
    return saved


def taken_back(saved: Saved, token: str) -> Saved:
    """What supersedes `saved`."""
    records: list[Feedback | Grade] = []
    by = ""
    for one in saved.records:
        if not isinstance(one, Feedback):
            continue
        by, after = one.by or "", one.at
        if one.name == NAME:
            records += judge(one.project, one.target, "withdrawn", None, by=by, token=token,
                             after=after, settles=bool(one.attributes.get(SETTLES)))  # fmt: skip
            continue
        at = max(time.time_ns(), after + 1)
        value: Any = False if one.kind == "boolean" else "withdrawn"
        records.append(
            Feedback(project=one.project, target=one.target, name=one.name, value=value,
                     kind=one.kind, by=by, at=at, attributes={"review": token})
        )  # fmt: skip
    return Saved(token, tuple(records), saved.items, f"took back: {saved.words}")


def offered(environment: "Environment | None", known: Sequence[Any], answer: str) -> Offered:
    """How `answer` should be saved: as text, or as the JSON that it is, whichever the environment
    reads a truth from, and rather in the form that the known answers have."""
    forms: list[Any] = [answer]
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        parsed = None
    if parsed is not None and not isinstance(parsed, str):
        texts = sum(isinstance(one, str) for one in known)
        forms.insert(1 if texts * 2 >= len(known) else 0, parsed)
    if environment is None:
        return Offered(forms[0], None, "the project's folder is not known here, so what its "
                       "environment reads from this shows in the next turn")  # fmt: skip
    why = "the environment reads no truth from this answer: it counts as a grade only"
    for value in forms:
        said = Feedback(project="", target="", name=NAME, value=value, kind="demonstration",
                        attributes={"verdict": "corrected"})  # fmt: skip
        try:
            truth = environment.corrected(said)
            if truth is not None:
                canonical(truth)
                return Offered(value, truth, "")
        except Exception as error:  # the project's own code
            why = f"the environment cannot read it: {type(error).__name__}: {str(error)[:300]}"
    return Offered(forms[0], None, why)


def environment_of(folder: Path | None) -> "Environment | None":
    """The project's environment; None where it cannot be had on this machine."""
    from environments.load import load_environment
    from flywheel.project import load_project

    if folder is None:
        return None
    try:
        project = load_project(folder)
        section = project.environment
        return load_environment(section.path, project.folder, section.config)
    except FlywheelError:
        return None


def blind(pair: Pair, token: str) -> tuple[str, str]:
    """The two in an order that says nothing, the same for one showing."""
    order = [pair.first, pair.second]
    random.Random(token).shuffle(order)
    return order[0], order[1]


_commits: dict[Path, threading.Thread] = {}
_starting = threading.Lock()


def commit_soon(home: Home) -> None:
    """Brings what was saved into the store, without anybody waiting; what is in the way of it now
    (a commit, a full disk) leaves it in the inbox for the next one."""
    with _starting:
        running = _commits.get(home.root)
        if running is None or not running.is_alive():
            _commits[home.root] = threading.Thread(target=_commit, args=(home,), daemon=True)
            _commits[home.root].start()


def _commit(home: Home) -> None:
    from storage.committer import commit

    try:
        while Inbox(home).pending():
            commit(home, wait_s=20)
    except FlywheelError:
        return


def _check_traces(home: Home, project: str, records: Sequence[Feedback | Grade]) -> None:
    from storage.browse import project_of

    if any(isinstance(one, Feedback) and one.project != project for one in records):
        raise UsageError(f"this review is not all of project {project}: nothing was saved")
    about = {one.target if isinstance(one, Feedback) else one.trace_id for one in records}
    for trace_id in sorted(about):
        there = project_of(home, trace_id)
        if there is None:
            raise Vanished(f"trace {trace_id} is not here any more: nothing was saved of it")
        if there != project:
            raise UsageError(
                f"trace {trace_id} is of project {there}, not of {project}: nothing was saved of it"
            )


def _who_has(home: Home, project: str, item: str, person: Person) -> str:
    lease = leases.leased(home, project).get(item)
    who = lease.by if lease is not None else "somebody else"
    if who == person.name:
        who = "another page of yours"
    return f"{who} took this item after your ten minutes had run out: nothing was saved of it"
