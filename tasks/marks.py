"""Marks: datasets, checkpoints and deployments that stand on grades, labels or rules which are
others now, and whether training again would be from other rows.

A project enters; leave marks in the ledger: new ones, changed ones, and settled ones of what is as
it was again or was made anew. Looked at are the datasets that count: the newest accepted ones, and
those that the deployments in use have learnt from.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from flywheel import durable
from flywheel.ids import digest
from flywheel.lineage import Dataset, Mark, MarkCause
from flywheel.project import Project
from flywheel.records import Record
from tasks.turns import Turn, home

if TYPE_CHECKING:
    from storage.built_on import Records
    from storage.datasets import Manifest

OURS: tuple[MarkCause, ...] = ("feedback", "label", "grader", "rules")
"""Causes that are looked for here; what was erased stays so."""
WHAT: dict[MarkCause, str] = {
    "feedback": "are graded otherwise since more was said of them",
    "label": "are graded otherwise since a person judged them",
    "grader": "are graded otherwise by the grader of now",
    "rules": "would not be the same by the project's rules of now",
}


class Again(Record, frozen=True, kw_only=True):
    """What curating again gave, the last time that anything differed."""

    of: str
    """Digest of what differed."""
    retrain: bool | None
    added: int = 0
    removed: int = 0


class Changed(NamedTuple):
    cause: MarkCause
    touched: int
    retrain: bool | None
    reason: str


def mark_changes(project: Project, known: "Records", live: Sequence[Dataset]) -> list[Mark]:
    """Commits the marks that are new or others than before, settled ones among them; returns all
    that stand.

    Args:
        known: the project's.
        live: the datasets that count.
    """
    from storage.built_on import built_on
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.moments import moment
    from storage.queries import records

    before = _remembered(project.name)
    again: dict[str, Again] = {}
    wanted: dict[str, Mark] = {}
    for dataset in live:
        for found in _changes(project, dataset, before.get(dataset.id), again):
            targets = [("dataset", dataset.id), *built_on(dataset.id, known)]
            for mark in _marks(project.name, dataset, found, targets):
                old = wanted.get(mark.id)
                wanted[mark.id] = mark if old is None else _both(old, mark)
    standing = {one.id: one for one in records(home(), "mark", project=project.name)}
    new = [one for one in wanted.values() if _says(one) != _says(standing.get(one.id))]
    gone = [
        replace(one, settled=True)
        for one in standing.values()
        if one.cause in OURS and not one.settled and one.id not in wanted
    ]
    if new or gone:
        now = moment(home())
        Inbox(home()).append([replace(one, at=now) for one in (*new, *gone)])
        commit(home())
    durable.write(_file(project.name), msgspec.json.encode(again))
    left = [one for one in standing.values() if not one.settled and one.cause not in OURS]
    return [*left, *wanted.values()]


def live_datasets(project: str, known: "Records") -> list[Dataset]:
    """Those that count: of what is in use, and the newest accepted one of each kind."""
    from serving.routing import read
    from storage.built_on import datasets_behind
    from storage.queries import records

    route = read(home()).projects.get(project)
    used = [route.champion, route.previous, route.challenger] if route else []
    behind = datasets_behind((one.name for one in used if one), known)
    made = [
        one
        for one in records(home(), "dataset", project=project)
        if not one.retired and one.product not in ("calibration", "evaluation")
    ]
    newest = {one.product: one.id for one in made if one.gate_passed}
    return [one for one in made if one.id in behind or one.id in newest.values()]


def _changes(
    project: Project, dataset: Dataset, before: Again | None, again: dict[str, Again]
) -> list[Changed]:
    """What of a dataset is otherwise now; notes in `again` what curating it again gave."""
    from storage.datasets import manifest_of
    from storage.stale import made_at, stale
    from tasks.curate import rules_of

    if not (home().path(dataset.path) / "rows.parquet").is_file():
        return []
    manifest = manifest_of(home(), dataset)
    turn = _turn_of(project, manifest)
    sequence = manifest.recipe.sequence if manifest.recipe else made_at(home(), dataset.id)
    found = stale(home(), dataset, project.traffic, sequence, project.labels)
    rules = rules_of(turn) if turn else manifest.rules
    other_rules = manifest.rules != rules
    if found is None or not (found.touched or found.spoken or other_rules):
        return []
    of = digest(found.digest, found.spoken, rules)
    seen = before if before and before.of == of else _curated_again(turn, manifest, of)
    again[dataset.id] = seen
    told = [
        Changed(cause, count, seen.retrain, f"{count} of {dataset.rows} rows {WHAT[cause]}")
        for cause, count in found.touched.items()
    ]
    if other_rules and seen.retrain is not False:
        count = seen.removed
        rows = f"{count} of {dataset.rows} rows" if seen.retrain else "its rows, perhaps,"
        told.append(Changed("rules", count, seen.retrain, f"{rows} {WHAT['rules']}"))
    elif not found.touched and seen.retrain:
        said = f"{len(found.spoken)} of its traces were spoken of since"
        told.append(Changed("feedback", seen.removed, True, said))
    return [_with_difference(one, seen) for one in told]


def _with_difference(one: Changed, seen: Again) -> Changed:
    """With what training again would be from."""
    if not seen.retrain:
        return one
    more = f"curated again it has {seen.added} other rows, and {seen.removed} of these not"
    return one._replace(reason=f"{one.reason}; {more}")


def _turn_of(project: Project, manifest: "Manifest") -> Turn | None:
    """The turn that made it, under the project's file of now; None = nobody said."""
    if manifest.recipe is None:
        return None
    turn = msgspec.convert(manifest.recipe.turn, Turn)
    return replace(turn, folder=str(project.folder), looked=True)


def _curated_again(turn: Turn | None, manifest: "Manifest", of: str) -> Again:
    """From what the turn saw, as that is graded now."""
    from storage.pool import Pool
    from tasks.products import choose_rows

    if turn is None or manifest.recipe is None:
        return Again(of=of, retrain=None)
    with Pool(home().pools) as pool:
        problems = list(manifest.recipe.problems)
        keys = set(choose_rows(turn, manifest.product, problems, pool).made.keys())
    was = {tuple(one) for one in manifest.keys}
    return Again(of=of, retrain=keys != was, added=len(keys - was), removed=len(was - keys))


def _marks(
    project: str, dataset: Dataset, found: Changed, targets: Iterable[tuple[str, str]]
) -> list[Mark]:
    return [
        Mark(
            project=project,
            target_kind=kind,  # type: ignore[arg-type]
            target=target,
            cause=found.cause,
            reason=f"dataset {dataset.id[:8]}: {found.reason}",
            touched=found.touched,
            of=dataset.rows,
            retrain=found.retrain,
        )
        for kind, target in targets
    ]


def _both(one: Mark, other: Mark) -> Mark:
    """Of something that stands on two datasets."""
    retrain = True if True in (one.retrain, other.retrain) else one.retrain and other.retrain
    return replace(
        one,
        reason=f"{one.reason}; {other.reason}",
        touched=one.touched + other.touched,
        of=one.of + other.of,
        retrain=retrain,
    )


def _says(mark: Mark | None) -> Mark | None:
    return mark and replace(mark, at=0)


def _remembered(project: str) -> dict[str, Again]:
    try:
        return msgspec.json.decode(_file(project).read_bytes(), type=dict[str, Again])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _file(project: str) -> Path:
    return home().turns / "marked" / f"{project}.json"
