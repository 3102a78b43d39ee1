"""Curation: candidate rows in, the rows worth training on out, each loss counted and explained.

First what touches a held-out problem goes, whatever the project says; then the project's rules, in
its order. The result depends on what the rows are, never on the order in which they came.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from pydantic import ValidationError

from flywheel.curate_section import CurateSection
from flywheel.errors import ProjectError, unfit
from flywheel.lineage import RuleCount
from flywheel.records import Problem, Record
from flywheel.rows import TrainingRow
from storage.features import with_features
from storage.leakage import leakage_check
from storage.narrow import narrow
from storage.rules import RULES
from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    import polars as pl

ORDER = ("row_id", "trace_id", "span_id")
"""The stable order that rules rely on: by hash."""


class RuleSpec(Record, frozen=True, kw_only=True):
    name: str
    """A key of RULES."""
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class Dropped(Record, frozen=True, kw_only=True):
    row_id: str
    trace_id: str
    rule: str
    reason: str


class Curated(Record, frozen=True, kw_only=True):
    rows: tuple[TrainingRow, ...]
    """Sorted by id."""
    counts: tuple[RuleCount, ...]
    """One a rule, in the order in which they ran; leakage first."""
    dropped: tuple[Dropped, ...]


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
    problems = []
    for spec in rules:
        try:
            _bind(spec)
        except ProjectError as error:
            problems.append(str(error))
    if problems:
        raise ProjectError("\n".join(problems))


def curate(
    rows: Sequence[TrainingRow],
    rules: Sequence[RuleSpec],
    heldout: Sequence[Problem],
    near_duplicate: float,
    known: Known | None = None,
) -> Curated:
    """Applies leakage and `rules`, in this order.

    Raises:
        ProjectError: a rule or parameter that does not exist or does not fit.
    """
    check_rules(rules)
    known = known or Known()
    bound = [(spec.name, *_bind(spec)) for spec in rules]
    frame = with_features(
        narrow(rows), rows, {each for _, rule, _ in bound for each in rule.needs}, known
    )
    frame = frame.with_row_index("wide").sort(*ORDER, maintain_order=True)
    counts: list[RuleCount] = []
    dropped: list[Dropped] = []

    def apply(name: str, why: "pl.Series", note: str) -> "pl.DataFrame":
        left = frame.select(row_id="row_id", trace_id="trace_id", reason=why).drop_nulls("reason")
        dropped.extend(Dropped(**each, rule=name) for each in left.iter_rows(named=True))
        kept = frame.filter(why.is_null())
        counts.append(RuleCount(rule=name, rows_in=len(frame), rows_out=len(kept), note=note))
        return kept

    ordered = [rows[place] for place in frame["wide"]]
    frame = apply("leakage", *_leakage(ordered, heldout, near_duplicate))
    for name, rule, parameters in bound:
        frame = apply(name, rule.judge(frame, parameters, known), _described(parameters))
        if rule.weigh:
            frame = frame.with_columns(weight=rule.weigh(frame, parameters, known))
    if frame["pair_id"].is_not_null().any():
        frame = apply("pairs", _widowed(frame), "both answers, or neither")
    kept = [
        rows[place] if rows[place].weight == weight else replace(rows[place], weight=weight)
        for place, weight in frame.select("wide", "weight").iter_rows()
    ]
    return Curated(rows=tuple(kept), counts=tuple(counts), dropped=tuple(dropped))


def _leakage(
    rows: Sequence[TrainingRow], heldout: Sequence[Problem], near_duplicate: float
) -> tuple["pl.Series", str]:
    import polars as pl

    leaks = leakage_check(rows, heldout, near_duplicate)
    verdicts: list[str | None] = [None] * len(rows)
    for leak in leaks:
        verdicts[leak.place] = leak.reason
    by = Counter(leak.by for leak in leaks)
    found = ", ".join(f"{count} by {kind}" for kind, count in sorted(by.items())) or "none found"
    problems = len({leak.problem_id for leak in leaks})
    touched = f", touching {problems} of them" if leaks else ""
    why = pl.Series(verdicts, dtype=pl.String)
    return why, f"against {len(heldout)} held-out problems: {found}{touched}"


def _widowed(frame: "pl.DataFrame") -> "pl.Series":
    """Of a pair that a rule parted the other answer goes too."""
    import polars as pl

    sides = pl.col("label").n_unique().over("pair_id")
    alone = pl.col("pair_id").is_not_null() & (sides < 2)
    return frame.select(why=pl.when(alone).then(pl.lit("the other of its pair went")))["why"]


def _described(parameters: Parameters) -> str:
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
