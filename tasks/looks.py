"""Looks: what of a project's recorded traffic must be graded, since the last look at it.

A turn and its grader enter; leaves the traces that came, changed or were spoken of since, or all of
them where the grader is another one. The last look is kept in the home once its grades are in the
store, so that one that was killed is done again.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flywheel import durable
from flywheel.ids import digest
from flywheel.project import Project
from flywheel.records import Record
from tasks.judges import OUTSIDE
from tasks.turns import Turn, home

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.judges.judge import ModelJudge

RECORDED = "recorded"
"""Name of the look at recorded traces; each kind of look has its own."""


class Look(Record, frozen=True, kw_only=True):
    sequence: int
    """The ledger's, up to which everything was looked at."""
    grader: str
    """Digest of what graded."""


def grader_of(project: Project, environment: "Environment", judge: "ModelJudge | None") -> str:
    """Digest of what decides a grade: environment, judge, and what that one may do."""
    if judge is None or project.judge is None:
        return environment.digest
    return digest(
        environment.digest, project.judge.model_dump(mode="json"), sorted(judge.standings.items())
    )


def due(turn: Turn, project: Project, grader: str) -> list[str] | None:
    """Ids of the traces to grade; None = all."""
    from storage.changed import changed, last_sequence, not_judged, of_whole_days

    last = last_look(turn.project)
    if last is None or last.grader != grader or last.sequence > last_sequence(home()):
        return None
    found = changed(home(), project.traffic, last.sequence)
    if project.judge is None:
        return found
    # What a judge is asked is a share of each day: it is chosen among all of that day.
    again = not_judged(home(), project.traffic, OUTSIDE)
    return of_whole_days(home(), project.traffic, [*found, *again])


def looked(turn: Turn, grader: str, name: str = RECORDED) -> None:
    """Everything up to the turn's sequence was graded by `grader`, and is committed."""
    last = last_look(turn.project, name)
    if last is None or last.grader != grader or last.sequence < turn.sequence:
        said = Look(sequence=turn.sequence, grader=grader)
        durable.write(_file(turn.project, name), msgspec.json.encode(said))


def last_look(project: str, name: str = RECORDED) -> Look | None:
    """None = nobody has looked yet."""
    try:
        return msgspec.json.decode(_file(project, name).read_bytes(), type=Look)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _file(project: str, name: str) -> Path:
    return home().turns / "looked" / f"{project}.{name}.json"
