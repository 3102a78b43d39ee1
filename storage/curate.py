"""Curation: candidate rows in, the rows worth training on out, each loss counted and explained.

First what touches a held-out problem goes, whatever the project says; then the project's rules, in
its order. The result depends on what the rows are, never on the order in which they came.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError

from flywheel.curate_section import CurateSection
from flywheel.errors import ProjectError, unfit
from flywheel.lineage import RuleCount
from flywheel.records import Problem, Record
from flywheel.rows import TrainingRow
from storage.leakage import leakage_check
from storage.rules import RULES
from storage.rules.rule import Parameters, Rule, Verdicts


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
) -> Curated:
    """Applies leakage and `rules`, in this order.

    Raises:
        ProjectError: a rule or parameter that does not exist or does not fit.
    """
    check_rules(rules)
    ids, kept = _ordered(rows)
    counts: list[RuleCount] = []
    dropped: list[Dropped] = []

    def apply(name: str, verdicts: Verdicts, note: str) -> None:
        nonlocal ids, kept
        for identity, row, reason in zip(ids, kept, verdicts, strict=True):
            if reason is not None:
                dropped.append(
                    Dropped(row_id=identity, trace_id=row.trace_id, rule=name, reason=reason)
                )
        stay = [place for place, reason in enumerate(verdicts) if reason is None]
        counts.append(RuleCount(rule=name, rows_in=len(kept), rows_out=len(stay), note=note))
        ids, kept = [ids[place] for place in stay], [kept[place] for place in stay]

    apply("leakage", *_leakage(kept, heldout, near_duplicate))
    for spec in rules:
        rule, parameters = _bind(spec)
        apply(spec.name, rule.judge(kept, parameters), _described(parameters))
    if any(row.pair_id for row in kept):
        apply("pairs", _widowed(kept), "both answers, or neither")
    return Curated(rows=tuple(kept), counts=tuple(counts), dropped=tuple(dropped))


def _ordered(rows: Sequence[TrainingRow]) -> tuple[list[str], list[TrainingRow]]:
    """Ids and rows in the stable order that rules rely on: by hash."""
    keyed = [(row.id, row.trace_id, row.span_id, place) for place, row in enumerate(rows)]
    keyed.sort(key=lambda key: key[:3])
    return [key[0] for key in keyed], [rows[key[3]] for key in keyed]


def _leakage(
    rows: Sequence[TrainingRow], heldout: Sequence[Problem], near_duplicate: float
) -> tuple[Verdicts, str]:
    leaks = leakage_check(rows, heldout, near_duplicate)
    verdicts: Verdicts = [None] * len(rows)
    for leak in leaks:
        verdicts[leak.place] = leak.reason
    by = Counter(leak.by for leak in leaks)
    found = ", ".join(f"{count} by {kind}" for kind, count in sorted(by.items())) or "none found"
    problems = len({leak.problem_id for leak in leaks})
    touched = f", touching {problems} of them" if leaks else ""
    return verdicts, f"against {len(heldout)} held-out problems: {found}{touched}"


def _widowed(rows: Sequence[TrainingRow]) -> Verdicts:
    """Of a pair that a rule parted the other answer goes too."""
    sides: dict[str, set[str | None]] = {}
    for row in rows:
        if row.pair_id:
            sides.setdefault(row.pair_id, set()).add(row.label)
    return [
        None if not row.pair_id or len(sides[row.pair_id]) == 2 else "the other of its pair went"
        for row in rows
    ]


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
