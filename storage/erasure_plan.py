"""What an erasure will do, written down before it begins: afterwards nobody could say it.

Enter who or what was asked for; leave the rows that go, what is looked for, and what was made of
them. A plan holds the very data that is to go, so it is the erasure's last act to remove it.
"""

from pathlib import Path

import msgspec

from flywheel import durable
from flywheel.errors import CorruptFile, FlywheelError
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Mark
from flywheel.records import Record
from storage.database import reading
from storage.flagged import Touched, datasets_with, marks_of
from storage.gathering import Gathered, gather
from storage.moments import moment
from storage.needles import Search
from storage.reach import Asked, Reached, reach
from storage.scrubbing import cleaned
from storage.tombstones import Tombstone, hashed, of_traces, secret


class Plan(Record, frozen=True, kw_only=True):
    id: str
    asked: Asked
    label: str
    """What may be told of it: its kind, and a keyed hash."""
    by: str
    reason: str
    at: int
    reached: Reached
    gathered: Gathered
    datasets: tuple[Touched, ...]
    marks: tuple[Mark, ...]


def plan_of(home: Home, asked: Asked, *, by: str = "", reason: str = "") -> Plan:
    """What would go, and what was made of it; nothing is changed."""
    at, key = moment(home), secret(home)
    label = f"{asked.kind} {hashed(key, asked.kind, asked.project or '', asked.value).hex()}"
    with reading(home) as database:
        if database is None:
            raise FlywheelError(f"nothing was ever committed in {home.root}")
        reached = reach(database, asked)
        gathered = gather(database, asked)
        datasets = datasets_with(database, home)
        marks = marks_of(database, datasets, what=label[:20], at=at)
    return Plan(
        id=new_ulid(), asked=asked, label=label, by=by, at=at, reached=reached,
        # It stands in the receipt, which comes after the last look.
        reason=cleaned(reason, Search(gathered.needles)),
        gathered=gathered, datasets=tuple(datasets), marks=tuple(marks),
    )  # fmt: skip


def counts_of(plan: Plan) -> dict[str, int]:
    """What goes, by kind."""
    reached = plan.reached
    return {
        "traces": len(reached.traces),
        "spans": reached.spans,
        "messages": len(reached.messages),
        "grades": reached.grades,
        "feedback": len(reached.feedback),
        "problems": len(reached.problems),
        "dataset rows": sum(one.rows for one in plan.datasets),
    }


def keep(home: Home, plan: Plan) -> None:
    path = _path(home, plan)
    home.erasing.mkdir(mode=0o700, parents=True, exist_ok=True)
    durable.write(path, msgspec.json.encode(plan))
    path.chmod(0o600)


def stones_of(home: Home, plan: Plan) -> list[Tombstone]:
    key, asked = secret(home), plan.asked
    stones = list(of_traces(key, plan.reached.traces))
    if asked.kind in ("user", "tenant", "conversation"):
        stone = hashed(key, asked.kind, asked.project or "", asked.value)
        stones.append(Tombstone(stone, plan.at))
    return stones


def waiting(home: Home) -> list[Plan]:
    """Plans of erasures that were begun and not finished. The caller holds the lock of erasures:
    half a plan was being written by one that was killed, and nothing else would ever remove it.

    Raises:
        CorruptFile: one of them cannot be read.
    """
    for left in home.erasing.glob(".*"):
        left.unlink(missing_ok=True)
    return [_read(path) for path in sorted(home.erasing.glob("*.json"))]


def done_with(home: Home, plan: Plan) -> None:
    _path(home, plan).unlink(missing_ok=True)


def _path(home: Home, plan: Plan) -> Path:
    return home.erasing / f"{plan.id}.json"


def _read(path: Path) -> Plan:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except msgspec.DecodeError as error:
        raise CorruptFile(
            f"{path} is no erasure's plan ({error}): remove it, then ask for the erasure again"
        ) from error
