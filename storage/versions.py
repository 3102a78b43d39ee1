"""Two versions of a dataset beside each other: rows, rules, and how their distributions shifted.

Enter two datasets, the earlier one first; leaves one comparison, and a page with a plot a column.
What changed is said of the dataset's own files alone, so it is the same on any day.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flywheel.home import Home
from flywheel.ids import canonical
from flywheel.lineage import Dataset, RuleCount
from flywheel.records import Record
from storage.curate import RuleSpec
from storage.dataset_rows import Difference, difference, narrow_columns
from storage.datasets import verified
from storage.gates.earlier import columns
from storage.pages import page_of
from storage.shifts import COMPARED, Shift, shifts

if TYPE_CHECKING:
    import polars as pl

DRIFTED = 0.25
"""PSI from which a column is shown as shifted: the bound that is usual for it."""
BESIDE = ("answered_by", "confirmed_by", "fidelity", "corrected", "weight")
"""Columns that are compared here beside those that gates compare."""


class RuleChange(Record, frozen=True, kw_only=True):
    rule: str
    what: Literal["added", "removed", "changed", "same"]
    before: str | None = None
    """Its parameters; None = it was not there."""
    after: str | None = None
    rows_before: tuple[int, int] | None = None
    """Rows in and out of it."""
    rows_after: tuple[int, int] | None = None


class Comparison(Record, frozen=True, kw_only=True):
    before: str
    """Id of the earlier dataset."""
    after: str
    rows_before: int
    rows_after: int
    difference: Difference
    rules: tuple[RuleChange, ...]
    shifts: tuple[Shift, ...]

    @property
    def shifted(self) -> tuple[Shift, ...]:
        """Those columns that lie apart by more than chance gives."""
        return tuple(one for one in self.shifts if one.beyond(DRIFTED))


def compare(home: Home, before: Dataset, after: Dataset) -> Comparison:
    """
    Raises:
        UsageError: the file of one of them is gone.
        CorruptFile: it is not what was published.
    """
    old, new = verified(home, before), verified(home, after)
    return Comparison(
        before=before.id,
        after=after.id,
        rows_before=before.rows,
        rows_after=after.rows,
        difference=difference(home, after, before),
        rules=rule_changes(old.rules, new.rules, old.counts, new.counts),
        shifts=shifts(_columns(home, before), _columns(home, after), (*COMPARED, *BESIDE)),
    )


def _columns(home: Home, dataset: Dataset) -> "pl.DataFrame":
    """What is compared, without reading what is wide where the gates left it beside the rows."""
    import polars as pl

    file = home.path(dataset.path) / "rows.parquet"
    there = [name for name in BESIDE if name in pl.read_parquet_schema(file)]
    beside = pl.read_parquet(file, columns=there, glob=False)
    kept = columns(home, dataset)
    return kept.hstack(beside) if kept.height == beside.height else narrow_columns(home, dataset)


def rule_changes(
    before: Sequence[RuleSpec],
    after: Sequence[RuleSpec],
    counted_before: Sequence[RuleCount],
    counted_after: Sequence[RuleCount],
) -> tuple[RuleChange, ...]:
    """One for each rule that either has, in the later one's order, then those that are gone.

    Leakage and whatever else runs without being asked for has no parameters.
    """
    olds, news = _parameters(before), _parameters(after)
    rows = _rows(counted_before), _rows(counted_after)
    names = list(dict.fromkeys([*rows[1], *news, *rows[0], *olds]))
    return tuple(_change(name, olds, news, *rows) for name in names)


def _change(
    name: str,
    olds: dict[str, str],
    news: dict[str, str],
    rows_before: dict[str, tuple[int, int]],
    rows_after: dict[str, tuple[int, int]],
) -> RuleChange:
    was, is_ = name in olds or name in rows_before, name in news or name in rows_after
    what: Literal["added", "removed", "changed", "same"] = "same"
    if not was or not is_:
        what = "removed" if was else "added"
    elif olds.get(name) != news.get(name):
        what = "changed"
    return RuleChange(
        rule=name,
        what=what,
        before=olds.get(name, "") if was else None,
        after=news.get(name, "") if is_ else None,
        rows_before=rows_before.get(name),
        rows_after=rows_after.get(name),
    )


def _parameters(rules: Sequence[RuleSpec]) -> dict[str, str]:
    """A rule that stands there twice has a number, from its second time on."""
    return _numbered([(one.name, _spelled(one.params)) for one in rules])


def _rows(counts: Sequence[RuleCount]) -> dict[str, tuple[int, int]]:
    return _numbered([(one.rule, (one.rows_in, one.rows_out)) for one in counts])


def _numbered(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    times: dict[str, int] = {}
    for name, value in pairs:
        times[name] = times.get(name, 0) + 1
        found[name if times[name] == 1 else f"{name} ({times[name]})"] = value
    return found


def _spelled(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={canonical(params[name]).decode()}" for name in sorted(params))


def page(found: Comparison) -> str:
    """The comparison as one HTML file that needs nothing else."""
    shifted = found.shifted
    drawn = [(one, one in shifted, _widest(one)) for one in found.shifts]
    return page_of(Path(__file__).with_name("versions.html.jinja"), found=found, drawn=drawn)


def _widest(shift: Shift) -> float:
    """What share a whole bar stands for."""
    return max((max(one.before, one.after) for one in shift.bins), default=0.0) or 1.0
