"""The pool: candidate rows of one curation, wide ones on disk, narrow columns in memory.

Batches of training rows enter in any order; leave the narrow columns of all of them in the stable
order (row_id, trace_id, span_id), and wide rows of those that stay, in that order, frame by frame.
Memory is bounded: a million rows are some hundred bytes each, whatever they say. A pool that fits
in memory never touches the disk; what a killed process left there the next pool removes.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from flywheel import durable
from flywheel.row_files import wide
from flywheel.rows import TrainingRow, encoded
from storage.features import Feature, columns_of
from storage.narrow import narrow
from storage.rules.rule import Known
from storage.scratch import scratch

if TYPE_CHECKING:
    import polars as pl

ORDER = ("row_id", "trace_id", "span_id")
"""Before chance: what is left equal by it is one row that came twice."""
PART_BYTES = 96_000_000
"""Wide rows held in memory before they go to disk."""
_BUCKETS = "0123456789abcdef"
"""Wide rows lie by the first digit of their id, so that one of sixteen is sorted at a time."""


class Pool:
    """Used as a context manager; what it read from is gone when it closes."""

    def __init__(self, folder: Path | None = None) -> None:
        """
        Args:
            folder: of all pools (`Home.pools`). None = all stays in memory.
        """
        self._place = folder
        self._folder: Path | None = None
        self._held = contextlib.ExitStack()
        self._narrow: list[pl.DataFrame] = []
        self._wide: list[pl.DataFrame] = []
        self._bytes = self._rows = self._parts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def __len__(self) -> int:
        return self._rows

    def add(
        self, rows: Sequence[TrainingRow], features: Mapping[str, Feature], known: Known
    ) -> None:
        """Takes a batch.

        Raises:
            Full: no space left for it.
        """
        import polars as pl

        told = encoded(rows)
        frame, whole = narrow(rows, told), wide(rows, told)
        numbers = pl.int_range(self._rows, self._rows + len(rows), dtype=pl.UInt32, eager=True)
        made = columns_of(rows, features, known)
        self._narrow.append(frame.with_columns(*made, wide=numbers))
        self._wide.append(whole.with_columns(wide=numbers))
        self._rows += len(rows)
        self._bytes += int(whole.estimated_size())
        if self._place is not None and self._bytes >= PART_BYTES:
            self._spill(self._place)

    def frame(self) -> "pl.DataFrame":
        """The narrow columns and features of all rows; `wide` is the number of each in the pool."""
        import polars as pl

        # Copies of one row that differ in what was said of them: their order must not be that in
        # which they came.
        apart = ("reward", "weight", "source", "rehearsed", "at", "confirmed_by", "signals")
        whole = pl.concat(self._narrow) if self._narrow else narrow([]).with_columns(wide=None)
        self._narrow = [whole.sort(*ORDER, *apart, maintain_order=True)]
        return self._narrow[0]

    def rows(self, chosen: "pl.DataFrame") -> Iterator["pl.DataFrame"]:
        """The wide rows of `chosen` (columns `wide` and `weight`, which is theirs from now on), as
        the columns of `flywheel.row_files.wide`, in the stable order."""
        import polars as pl

        wanted = chosen.select("wide", "weight", number=pl.int_range(pl.len()))
        for parts in self._buckets():
            found = [part.drop("weight").join(wanted, on="wide") for part in parts]
            columns = wide([]).columns
            if any(len(part) for part in found):
                yield pl.concat(found).sort("number").select(columns)

    def _buckets(self) -> Iterator[list["pl.DataFrame"]]:
        import polars as pl

        if self._folder is None:
            yield self._wide
            return
        for bucket in _BUCKETS:
            files = sorted(self._folder.glob(f"{bucket}-*.arrow"))
            read = [pl.scan_ipc(file, glob=False).collect() for file in files]
            yield [*read, *(_of(bucket, frame) for frame in self._wide)]

    def _spill(self, place: Path) -> None:
        import polars as pl

        if self._folder is None:
            self._folder = self._held.enter_context(scratch(place))
        whole = pl.concat(self._wide)
        with durable.no_space(self._folder):
            for bucket in _BUCKETS:
                path = self._folder / f"{bucket}-{self._parts:06}.arrow"
                _of(bucket, whole).write_ipc(path, compression="zstd")
        self._parts += 1
        self._wide, self._bytes = [], 0


def _of(bucket: str, frame: "pl.DataFrame") -> "pl.DataFrame":
    import polars as pl

    return frame.filter(pl.col("id").str.starts_with(bucket))
