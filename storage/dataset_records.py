"""What the store says of datasets: which there are, what has changed since, and what was made of
them.

Enter a home and an id, or the beginning of one; leave records.
"""

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset, Mark, Run
from flywheel.records import Record

SHORTEST = 4
"""Characters of an id that are looked for."""


class Standing(Record, frozen=True, kw_only=True):
    """A dataset with what became of it."""

    dataset: Dataset
    here: bool
    """Whether its rows are in this home."""
    marks: tuple[Mark, ...]
    """What it stands on and has changed since; settled ones apart."""
    successors: tuple[str, ...]
    """Datasets that name it as parent."""
    runs: tuple[str, ...]
    """That were trained on it."""


def datasets(home: Home, project: str | None = None) -> list[Dataset]:
    """In the order they were made."""
    from storage.queries import records

    return records(home, "dataset", project=project)


def found(home: Home, id: str) -> Dataset:
    """
    Raises:
        UsageError: there is none, or there are several that begin so.
    """
    near = [one for one in datasets(home) if one.id.startswith(id)] if len(id) >= SHORTEST else []
    if len(near) != 1:
        told = f"{len(near)} datasets begin so" if near else "no dataset has this id"
        raise UsageError(f"{id}: {told}; `flywheel datasets list` names them")
    return near[0]


def standing(home: Home, dataset: Dataset) -> Standing:
    from storage.queries import records

    marks: list[Mark] = records(home, "mark", project=dataset.project)
    runs: list[Run] = records(home, "run", project=dataset.project)
    return Standing(
        dataset=dataset,
        here=(home.path(dataset.path) / "rows.parquet").is_file(),
        marks=tuple(
            one for one in marks
            if (one.target_kind, one.target) == ("dataset", dataset.id) and not one.settled
        ),
        successors=tuple(
            one.id for one in datasets(home, dataset.project) if dataset.id in one.parents
        ),
        runs=tuple(one.id for one in runs if one.dataset_id == dataset.id),
    )  # fmt: skip
