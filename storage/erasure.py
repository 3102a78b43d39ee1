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

from flywheel.errors import Busy
from flywheel.failpoints import failpoint
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import Decision, Erasure
from flywheel.progress import report
from storage.committer import commit
from storage.database import reading
from storage.embeddings import forget_signs
from storage.entries import record_of
from storage.envelope import AnyRecord
from storage.erasure_plan import Plan, counts_of, done_with, keep, plan_of, stones_of, waiting
from storage.finding import Found, find, look_in_lake
from storage.flagged import late_marks
from storage.inbox import Inbox
from storage.lake import open_lake
from storage.locks import held
from storage.moments import moment
from storage.needles import Search
from storage.publish import publish
from storage.raw_anew import raw_anew
from storage.reach import Asked
from storage.receipts import drop as drop_receipts
from storage.removing import remove, rewrite, scrub_records
from storage.rows import fetch
from storage.scrub import scrub
from storage.search import forget
from storage.successor import close_turns, drop_files, succeeded
from storage.tombstones import changed

_ROUNDS = 4
"""Of looking and cleaning, before what is still found is told instead."""
_PLANS = 20
"""Times that a plan is made anew since more came before its rows were gone."""
_WAIT_S = 600.0


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
        keep(home, plan)
        failpoint("erase.planned")
        return _carry_out(home, plan, wait_s)


def resume(home: Home, *, wait_s: float = _WAIT_S) -> list[Erasure]:
    """Goes on with what was begun and not finished."""
    if not home.erasing.is_dir() or not any(home.erasing.iterdir()):
        return []
    busy = "another erasure is under way: wait for it and run again"
    with held(home.locks / "erasing.lock", wait_s=wait_s, busy=busy):
        return _finish_others(home, wait_s)


def flag_later(home: Home) -> int:
    """Marks what was made of erased data while it was being erased; returns how many."""
    with reading(home) as database:
        marks = [] if database is None else late_marks(database, at=moment(home))
    if marks:
        Inbox(home).append(marks)
        commit(home)
    return len(marks)


def _finish_others(home: Home, wait_s: float) -> list[Erasure]:
    return [_carry_out(home, plan, wait_s) for plan in waiting(home)]


def _carry_out(home: Home, plan: Plan, wait_s: float) -> Erasure:
    report("erasing", 0, 6, "rows")
    plan = _removed(home, plan, wait_s)
    search, reached = Search(plan.gathered.needles), plan.reached
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
    forget_signs(home.embeddings)
    close_turns(home, {one.id for one in plan.datasets})
    cleaned, found = _until_nothing(home, search, wait_s)
    if home.lake is not None:
        lake = open_lake(home.lake)
        publish(home, lake, anew=True)
        lake.tidy()
        look_in_lake(lake, search, found)
    receipt = _receipt(home, plan, datasets, cleaned, found, raw)
    if not receipt.left:
        receipt = msgspec.structs.replace(receipt, done=moment(home))
    Inbox(home).append([receipt], name=f"erasure-{plan.id}-{receipt.done or moment(home)}")
    commit(home, wait_s=wait_s)
    report("erasing", 6, 6)
    if not receipt.left:
        done_with(home, plan)
    return receipt


def _removed(home: Home, plan: Plan, wait_s: float) -> Plan:
    """Removes the rows; returns the plan by which they went: it is made anew where an import or a
    server brought more meanwhile."""
    for _ in range(_PLANS):
        stones = stones_of(home, plan)
        if remove(home, f"erasure:{plan.id}", asked=plan.asked, reached=plan.reached,
                  stones=stones, wait_s=wait_s):  # fmt: skip
            return plan
        new = plan_of(home, plan.asked, by=plan.by, reason=plan.reason)
        plan = msgspec.structs.replace(new, id=plan.id)
        keep(home, plan)
    raise Busy("more of what is erased is committed all the time: stop its sender, and run again")


def _datasets(home: Home, plan: Plan, search: Search, wait_s: float) -> dict[str, str | None]:
    """Writes successors and marks, once whatever is killed; returns dataset -> successor."""
    traces, problems = frozenset(plan.reached.traces), frozenset(plan.reached.problems)
    records: list[AnyRecord] = [*plan.marks]
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
    begun = Erasure(id=plan.id, asked=plan.label, by=plan.by, reason=plan.reason, at=plan.at)
    Inbox(home).append([*records, begun], name=f"erasure-{plan.id}-lineage")
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
        inner = place.path.is_relative_to(home.root)
        path = place.path.relative_to(home.root) if inner else place.path
        yield f"{path}{inside}: {place.kind}"
