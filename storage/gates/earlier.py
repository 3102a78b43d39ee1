"""The dataset that a new one is compared with: the last of the project that the data gate accepted.

Its compared columns lie beside its rows, so that the rows need not be read: lengths, rewards and
kinds, no words and no ids.
"""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flywheel import durable
from flywheel.home import Home
from flywheel.lineage import Dataset
from storage.shifts import COMPARED

if TYPE_CHECKING:
    import polars as pl

FILE = "gate.parquet"


class Earlier(NamedTuple):
    dataset: str
    """Its id."""
    frame: "pl.DataFrame"
    """The columns that are compared, of those that it has."""


def last_accepted(home: Home, dataset: Dataset) -> Earlier | None:
    """Of the same project and for the same use; None = there is none whose files are here."""
    from storage.queries import records

    for one in reversed(records(home, "dataset", project=dataset.project)):
        folder = home.path(one.path)
        fits = one.id != dataset.id and one.product == dataset.product
        if fits and one.gate_passed and not one.retired and (folder / "rows.parquet").is_file():
            return Earlier(one.id, columns(home, one))
    return None


def keep(folder: Path, frame: "pl.DataFrame") -> None:
    """Leaves the compared columns of `frame` for the next dataset."""
    made = BytesIO()
    frame.select(one for one in COMPARED if one in frame.columns).write_parquet(made)
    durable.write(folder / FILE, made.getvalue())


def columns(home: Home, dataset: Dataset) -> "pl.DataFrame":
    """A dataset's compared columns: as they were kept, else of its rows.

    Raises:
        CorruptFile: its rows cannot be read.
    """
    import polars as pl

    from storage.dataset_rows import narrow_columns

    try:
        return pl.read_parquet(home.path(dataset.path) / FILE, glob=False)
    except (OSError, pl.exceptions.PolarsError):
        frame = narrow_columns(home, dataset)
        return frame.select(one for one in COMPARED if one in frame.columns)
