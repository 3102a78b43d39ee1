"""Curation: candidate rows in, the rows worth training on out, each loss counted and explained.

First what touches a held-out problem goes, whatever the project says; then the project's rules, in
its order. Rows stream into a pool; rules see their narrow columns. The result depends on what the
rows are, never on the order in which they came.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import ValidationError

from flywheel.curate_section import CurateSection
from flywheel.errors import ProjectError, unfit
from flywheel.lineage import RuleCount
from flywheel.records import Problem, Record
from flywheel.row_files import rows_in, write_wide
from flywheel.rows import TrainingRow
from storage.features import FEATURES, Feature
from storage.leakage import Heldout
from storage.pool import Pool
from storage.rows import no_collection
from storage.rules import RULES
from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl

BATCH = 2000
"""Rows that are looked at together while they stream."""


class RuleSpec(Record, frozen=True, kw_only=True):
    name: str
    """A key of RULES."""
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class Dropped(Record, frozen=True, kw_only=True):
    row_id: str
    trace_id: str
    rule: str
    reason: str


@dataclass(frozen=True)
class Curated:
    frame: "pl.DataFrame"
    """Narrow columns of the rows that stay, in their stable order; `wide` is each one's number in
    the pool."""
    counts: tuple[RuleCount, ...]
    """One a rule, in the order in which they ran; leakage first."""
    verdicts: "pl.DataFrame"
    """row_id, trace_id, rule, reason of each row that went, in the order in which they did."""
    pool: Pool

    @property
    def rows(self) -> tuple[TrainingRow, ...]:
        """All that stay, read whole: only where they are known to be few."""
        return tuple(row for some in self.pool.rows(self.frame) for row in rows_in(some))

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """All that went, likewise."""
        return tuple(_dropped(self.verdicts))

    def examples(self, most: int) -> Iterator[Dropped]:
        """The first `most` dropped rows of each rule."""
        import polars as pl

        early = pl.int_range(pl.len()).over("rule") < most
        yield from _dropped(self.verdicts.filter(early))

    def keys(self) -> list[tuple[str, float | None, float]]:
        """Id, reward and weight of each row that stays, sorted."""
        import polars as pl

        return self.frame.select("row_id", "reward", "weight").sort(pl.all()).rows()

    def write(self, path: Path) -> None:
        """The rows that stay as a dataset's file."""
        write_wide(path, self.pool.rows(self.frame))


def rule_specs(section: CurateSection) -> tuple[RuleSpec, ...]:
    """The rules that a project asks for, looked at.

    Raises:
        ProjectError: as `check_rules`.
    """
    specs = [
        RuleSpec(name=rule.name, params=dict(rule.model_extra or {})) for rule in section.rules
    ]
    check_rules(specs)
    return tuple(specs)


def check_rules(rules: Iterable[RuleSpec]) -> None:
    """Looks at names and parameters before any work is done.

    Raises:
        ProjectError: names each rule or parameter that does not fit, and the nearest right one.
    """
    bound_rules(rules)


def bound_rules(rules: Iterable[RuleSpec]) -> list[tuple[str, Rule, Parameters]]:
    """Each rule with its parameters, as `check_rules` looks at them."""
    problems, bound = [], []
    for spec in rules:
        try:
            bound.append((spec.name, *_bind(spec)))
        except ProjectError as error:
            problems.append(str(error))
    if problems:
        raise ProjectError("\n".join(problems))
    return bound


def curate(
    rows: Iterable[TrainingRow],
    rules: Sequence[RuleSpec],
    heldout: Heldout | Iterable[Problem],
    near_duplicate: float = 0.7,
    known: Known | None = None,
    pool: Pool | None = None,
) -> Curated:
    """Applies leakage and `rules`, in this order.

    Args:
        rows: in any order; each is held only while it passes.
        near_duplicate: as `Heldout` takes it; where that is given already, it has its own.
        pool: where they are kept, and what may be there already; None = in memory.

    Raises:
        ProjectError: a rule or parameter that does not exist or does not fit.
    """
    bound = bound_rules(rules)
    known = known or Known()
    if not isinstance(heldout, Heldout):
        heldout = Heldout(heldout, near_duplicate)
    features = features_of(bound) | {LEAK: _leaks_of(heldout)}
    pool = Pool() if pool is None else pool  # an empty one is false
    with no_collection():
        for batch in _batches(rows):
            pool.add(batch, features, known)
    if not len(pool):
        pool.add((), features, known)  # rules find their columns where there are no rows too
    return _judged(pool, bound, heldout, known)


def features_of(bound: Iterable[tuple[str, Rule, Parameters]]) -> dict[str, Feature]:
    """The columns that rules need beside the narrow ones."""
    found: dict[str, Feature] = {}
    for _, rule, parameters in bound:
        found |= {name: FEATURES[name] for name in rule.needs}
        found |= rule.asks(parameters) if rule.asks else {}
    return dict(sorted(found.items()))


def gathered(rows: Iterable[TrainingRow], count: RuleCount, pool: Pool | None = None) -> Curated:
    """Rows that were chosen already, such as what a run was trained on, as if curated."""
    pool = Pool() if pool is None else pool  # an empty one is false
    with no_collection():
        for batch in _batches(rows):
            pool.add(batch, {}, Known())
    return Curated(frame=pool.frame(), counts=(count,), verdicts=_no_verdicts(), pool=pool)


LEAK = "leak"
"""Of the pool's frame: reason, kind and held-out problem of a leak; null = the row is none."""


def _leaks_of(heldout: Heldout) -> Feature:
    def leaks(rows: Sequence[TrainingRow], _: Known) -> list[list[str] | None]:
        found: list[list[str] | None] = [None] * len(rows)
        for leak in heldout.leaks(rows):
            found[leak.place] = [leak.reason, leak.by, leak.problem_id]
        return found

    return Feature("List(String)", leaks)


def _judged(
    pool: Pool, bound: "Sequence[tuple[str, Rule, Parameters]]", heldout: Heldout, known: Known
) -> Curated:
    import polars as pl

    frame = pool.frame()
    counts: list[RuleCount] = []
    verdicts = [_no_verdicts()]

    def apply(name: str, why: "pl.Series", note: str) -> "pl.DataFrame":
        went = frame.select("row_id", "trace_id", rule=pl.lit(name), reason=why)
        verdicts.append(went.drop_nulls("reason"))
        kept = frame.filter(why.is_null())
        counts.append(RuleCount(rule=name, rows_in=len(frame), rows_out=len(kept), note=note))
        return kept

    frame = apply("leakage", frame[LEAK].list.get(0, null_on_oob=True), _told(frame, heldout))
    for name, rule, parameters in bound:
        frame = apply(name, rule.judge(frame, parameters, known), described(parameters))
        if rule.weigh:
            frame = frame.with_columns(weight=rule.weigh(frame, parameters, known))
    if frame["pair_id"].is_not_null().any():
        frame = apply("pairs", _widowed(frame), "both answers, or neither")
    return Curated(
        frame=frame.drop(LEAK), counts=tuple(counts), verdicts=pl.concat(verdicts), pool=pool
    )


def _batches(rows: Iterable[TrainingRow]) -> Iterator[list[TrainingRow]]:
    left = iter(rows)
    while batch := list(islice(left, BATCH)):
        yield batch


def _no_verdicts() -> "pl.DataFrame":
    import polars as pl

    return pl.DataFrame(schema=dict.fromkeys(("row_id", "trace_id", "rule", "reason"), pl.String))


def _dropped(verdicts: "pl.DataFrame") -> Iterator[Dropped]:
    for each in verdicts.iter_rows(named=True):
        yield Dropped(**each)


def _told(frame: "pl.DataFrame", heldout: Heldout) -> str:
    """How many leaks of which kind there are, as the report says it."""
    leaks = frame[LEAK].drop_nulls()
    by = leaks.list.get(1).value_counts().sort("leak").rows()
    found = ", ".join(f"{count} by {kind}" for kind, count in by) or "none found"
    touched = f", touching {leaks.list.get(2).n_unique()} of them" if len(leaks) else ""
    return f"against {len(heldout)} held-out problems: {found}{touched}"


def _widowed(frame: "pl.DataFrame") -> "pl.Series":
    """Of a pair that a rule parted the other answer goes too."""
    import polars as pl

    sides = pl.col("label").n_unique().over("pair_id")
    alone = pl.col("pair_id").is_not_null() & (sides < 2)
    return frame.select(why=pl.when(alone).then(pl.lit("the other of its pair went")))["why"]


def described(parameters: Parameters) -> str:
    values = parameters.model_dump(mode="json", exclude_none=True)
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _bind(spec: RuleSpec) -> tuple[Rule, Parameters]:
    rule = RULES.get(spec.name)
    if rule is None:
        raise ProjectError(f"no curation rule {spec.name!r}{_nearest(spec.name, RULES)}")
    try:
        return rule, rule.parameters.model_validate(spec.params)
    except ValidationError as error:
        told = [_explained(item, rule.parameters) for item in error.errors()]
        raise ProjectError(f"curation rule {spec.name!r}: {'; '.join(told)}") from error


def _explained(item: Any, parameters: type[Parameters]) -> str:
    name = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"no parameter {name!r}{_nearest(name, parameters.model_fields)}"
    return f"{name}: {unfit(item)}"


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else "; it takes none"
