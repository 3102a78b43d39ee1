"""Erasure: all that is somebody's goes from a home, from what was made of it, and it is shown.

Enters who or what is to be forgotten; leaves a receipt that tells nobody who it was. The plan is
written before anything goes, for afterwards nobody could say what to look for; every step finds
what an earlier try did already, so that an erasure that was killed goes on at the next one. The
last step is a search through every file: what it finds is cleaned, until it finds nothing.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from flywheel import durable
from flywheel.errors import Busy, CorruptFile, FlywheelError
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Decision, Erasure, Mark
from flywheel.progress import report
from flywheel.records import Record
from storage.committer import commit
from storage.database import reading
from storage.entries import record_of
from storage.finding import Found, find
from storage.flagged import Touched, datasets_with, marks_of
from storage.gathering import Gathered, gather
from storage.inbox import Inbox
from storage.locks import held
from storage.moments import moment
from storage.needles import Search
from storage.raw_anew import raw_anew
from storage.reach import Asked, Reached, reach
from storage.receipts import drop as drop_receipts
from storage.removing import remove, rewrite, scrub_records
from storage.rows import fetch
from storage.scrub import scrub
from storage.search import forget
from storage.successor import drop_files, succeeded
from storage.tombstones import Tombstone, changed, hashed, of_traces, secret

_ROUNDS = 4
"""Of looking and cleaning, before what is still found is told instead."""
_WAIT_S = 600.0


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


def erase(home: Home, asked: Asked, *, by: str, reason: str, wait_s: float = _WAIT_S) -> Erasure:
    """Erases, and returns the receipt; `left` is empty where nothing is to be found any more.

    Raises:
        Busy: the store, or a file, was held by another process for longer than `wait_s`: run it
            again, it goes on.
        Full: no room to write the database anew: free some and run it again.
    """
    busy = "another erasure is under way: wait for it and run again"
    with held(home.locks / "erasing.lock", wait_s=wait_s, busy=busy):
        _finish_others(home, wait_s)
        commit(home, wait_s=wait_s)
        plan = plan_of(home, asked, by=by, reason=reason)
        _keep(home, plan)
        failpoint("erase.planned")
        return _carry_out(home, plan, wait_s)


def resume(home: Home, *, wait_s: float = _WAIT_S) -> list[Erasure]:
    """Goes on with what was begun and not finished."""
    if not any(home.erasing.glob("*.json")):
        return []
    busy = "another erasure is under way: wait for it and run again"
    with held(home.locks / "erasing.lock", wait_s=wait_s, busy=busy):
        return _finish_others(home, wait_s)


def plan_of(home: Home, asked: Asked, *, by: str = "", reason: str = "") -> Plan:
    """What would go, and what was made of it; nothing is changed."""
    at, key = moment(home), secret(home)
    label = f"{asked.kind} {hashed(key, asked.kind, asked.project or '', asked.value).hex()}"
    with reading(home) as database:
        if database is None:
            empty = Reached(
                traces=(), problems=(), feedback=(), messages=(), toolsets=(), spans=0, grades=0,
                projects=(),
            )  # fmt: skip
            raise FlywheelError(f"nothing was ever committed in {home.root}: {empty.spans} spans")
        reached = reach(database, asked)
        gathered = gather(database, asked)
        datasets = datasets_with(database, home)
        marks = marks_of(database, datasets, what=label[:20], at=at)
    return Plan(
        id=new_ulid(), asked=asked, label=label, by=by, reason=reason, at=at, reached=reached,
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


def _finish_others(home: Home, wait_s: float) -> list[Erasure]:
    done = []
    for path in sorted(home.erasing.glob("*.json")):
        try:
            plan = msgspec.json.decode(path.read_bytes(), type=Plan)
        except msgspec.DecodeError as error:
            raise CorruptFile(
                f"{path} is no erasure's plan ({error}): ask for the erasure again, then remove it"
            ) from error
        done.append(_carry_out(home, plan, wait_s))
    return done


def _keep(home: Home, plan: Plan) -> None:
    path = home.erasing / f"{plan.id}.json"
    home.erasing.mkdir(mode=0o700, parents=True, exist_ok=True)
    durable.write(path, msgspec.json.encode(plan))
    path.chmod(0o600)


def _carry_out(home: Home, plan: Plan, wait_s: float) -> Erasure:
    search, reached = Search(plan.gathered.needles), plan.reached
    report("erasing", 0, 6, "rows")
    remove(
        home, f"erasure:{plan.id}", reached=reached, stones=_stones(home, plan), wait_s=wait_s
    )  # fmt: skip
    changed(home)
    failpoint("erase.removed")
    report("erasing", 1, 6, "raw bytes")
    raw = raw_anew(home, plan.gathered.raws, plan.gathered.kept, search, wait_s=wait_s)
    report("erasing", 2, 6, "datasets")
    datasets = _datasets(home, plan, search, wait_s)
    failpoint("erase.datasets")
    report("erasing", 3, 6, "the database's file")
    scrub_records(home, search, wait_s=wait_s)
    rewrite(home, wait_s=wait_s)
    failpoint("erase.rewritten")
    report("erasing", 4, 6, "files")
    drop_receipts(home, {key.partition("#")[0] for key in plan.gathered.raws})
    for project in reached.projects:
        forget(home, project, reached.traces)
    cleaned, found = _until_nothing(home, search, wait_s)
    receipt = _receipt(home, plan, datasets, cleaned, found, raw)
    if not receipt.left:
        receipt = msgspec.structs.replace(receipt, done=moment(home))
    Inbox(home).append([receipt], name=f"erasure-{plan.id}-{receipt.done or moment(home)}")
    commit(home, wait_s=wait_s)
    report("erasing", 6, 6)
    if not receipt.left:
        (home.erasing / f"{plan.id}.json").unlink(missing_ok=True)
    return receipt


def _stones(home: Home, plan: Plan) -> list[Tombstone]:
    key, asked = secret(home), plan.asked
    stones = list(of_traces(key, plan.reached.traces))
    if asked.kind in ("user", "tenant", "conversation"):
        stone = hashed(key, asked.kind, asked.project or "", asked.value)
        stones.append(Tombstone(stone, plan.at))
    return stones


def _datasets(home: Home, plan: Plan, search: Search, wait_s: float) -> dict[str, str | None]:
    """Writes successors and marks, once whatever is killed; returns dataset -> successor."""
    traces, problems = frozenset(plan.reached.traces), frozenset(plan.reached.problems)
    records: list[object] = [*plan.marks]
    for touched in plan.datasets:
        with reading(home) as database:
            assert database is not None
            (row,) = fetch(database, "datasets", [touched.id])
        old, made = succeeded(
            home, touched, record_of("dataset", row), traces=traces, problems=problems,
            search=search, why=plan.label[:20],
        )  # fmt: skip
        records += [old, *([made] if made else [])]
    told = ", ".join(f"{number} {name}" for name, number in counts_of(plan).items() if number)
    records += [
        Decision(
            id=new_ulid(), project=project, outcome="erased", gate=plan.asked.kind,
            reason=f"{told}: {plan.reason}" if plan.reason else told, by=plan.by, at=moment(home),
            evidence={"erasure": plan.id},
        )
        for project in plan.reached.projects
    ]  # fmt: skip
    Inbox(home).append(records, name=f"erasure-{plan.id}-lineage")  # type: ignore[arg-type]
    commit(home, wait_s=wait_s)
    for touched in plan.datasets:
        drop_files(home, touched)
    return {one.id: _successor(home, one.id) for one in plan.datasets}


def _successor(home: Home, dataset: str) -> str | None:
    with reading(home) as database:
        assert database is not None
        rows = database.execute(
            "SELECT id FROM datasets WHERE list_contains(parents, $id) "
            "AND body ->> '$.retired' IS NULL ORDER BY since DESC LIMIT 1",
            {"id": dataset},
        ).fetchall()
    return rows[0][0] if rows else None


def _until_nothing(home: Home, search: Search, wait_s: float) -> tuple[Counter[str], Found]:
    """Looks and cleans, until there is nothing to be found or nothing helps; returns what was
    cleaned, by folder, and the last look."""
    done: Counter[str] = Counter()
    found = Found()
    for _ in range(_ROUNDS):
        commit(home, wait_s=wait_s)
        found = find(home.root, search, leave=(home.erasing,))
        report("erasing", 5, 6, f"{len(found.files)} files hold something")
        if not found.files:
            break
        for path in found.files:
            done[path.relative_to(home.root).parts[0]] += _scrubbed(home, path, search)
        if home.database in found.files:
            scrub_records(home, search, wait_s=wait_s)
            rewrite(home, wait_s=wait_s)
    return done, found


def _scrubbed(home: Home, path: Path, search: Search) -> bool:
    try:
        return scrub(home, path, search) != "kept"
    except FileNotFoundError:
        return True
    except (Busy, OSError, ValueError):
        return False  # the next look finds it again, and the receipt says so


def _receipt(
    home: Home, plan: Plan, datasets: dict[str, str | None], cleaned: Counter[str], found: Found,
    raw: int,
) -> Erasure:  # fmt: skip
    flagged = [one.target for one in plan.marks if one.target_kind != "dataset"]
    removed = {name: number for name, number in counts_of(plan).items() if number}
    removed |= {"raw bytes": raw} if raw else {}
    removed |= {f"files of {area}": number for area, number in sorted(cleaned.items())}
    beside = {
        "needles looked for": len(plan.gathered.needles.ids) + len(plan.gathered.needles.texts),
        "needles that others' data holds too": plan.gathered.shared,
        "texts too short to be looked for": plan.gathered.too_short,
        "texts left out for their number": plan.gathered.sampled,
    }
    return Erasure(
        id=plan.id, asked=plan.label, by=plan.by, reason=plan.reason, at=plan.at,
        removed=removed, datasets=datasets, flagged=tuple(flagged),
        searched={**found.looked, **{name: n for name, n in beside.items() if n}},
        left=tuple(_left(home, found)),
    )  # fmt: skip


def _left(home: Home, found: Found) -> Iterator[str]:
    for place in found.places:
        inside = f" ({place.inside})" if place.inside else ""
        yield f"{place.path.relative_to(home.root)}{inside}: {place.kind}"
