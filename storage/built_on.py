"""What stands on a dataset: checkpoints that were trained on it, or from such a one, and their
deployments.

Enter the records of a project; leave ids. Every record names its predecessor, so this only follows
names.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from flywheel.home import Home
from flywheel.lineage import Checkpoint, Deployment, Run
from storage.database import reading

Kind = Literal["checkpoint", "deployment"]


class Records(NamedTuple):
    runs: tuple[Run, ...]
    checkpoints: tuple[Checkpoint, ...]
    deployments: tuple[Deployment, ...]


def records_of(home: Home, project: str) -> Records:
    from storage.queries import records

    kinds = ("run", "checkpoint", "deployment")
    with reading(home):  # one open for the three
        runs, checkpoints, deployments = (records(home, kind, project=project) for kind in kinds)
    return Records(tuple(runs), tuple(checkpoints), tuple(deployments))


def built_on(dataset: str, known: Records) -> list[tuple[Kind, str]]:
    """Whose weights have seen it, itself or by what they began from."""
    runs = {one.id for one in known.runs if one.dataset_id == dataset}
    checkpoints: set[str] = set()
    names: set[str] = set()
    while True:
        before = len(runs) + len(checkpoints) + len(names)
        for point in known.checkpoints:
            if point.run_id in runs or point.parent in checkpoints:
                checkpoints.add(point.id)
        for one in known.deployments:
            if one.checkpoint_id in checkpoints or (one.checkpoint_id and one.run_id in runs):
                names.add(one.name)
        runs |= {run.id for run in known.runs if run.champion in names}
        if len(runs) + len(checkpoints) + len(names) == before:
            break
    return [*(("checkpoint", one) for one in sorted(checkpoints)),
            *(("deployment", one) for one in sorted(names))]  # fmt: skip


def datasets_behind(deployments: Iterable[str], known: Records) -> set[str]:
    """Datasets that the weights of these have seen, all the way down."""
    by_name = {one.name: one for one in known.deployments}
    runs = {one.id: one for one in known.runs}
    of_checkpoint = {one.id: one.run_id for one in known.checkpoints}
    ahead, seen, found = [*deployments], set[str](), set[str]()
    while ahead:
        name = ahead.pop()
        one = by_name.get(name)
        if one is None or name in seen:
            continue
        seen.add(name)
        run = runs.get(one.run_id or of_checkpoint.get(one.checkpoint_id or "") or "")
        if run is not None:
            ahead.append(run.champion)
            found |= {run.dataset_id} if run.dataset_id else set()
    return found
