"""What curation rules may know beside the rows, read out of the store as of one snapshot.

Enter a project's names, a ledger sequence and the rules that will run; leaves `Known`. Nothing is
read that none of the rules asks for, and nothing depends on the clock.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from flywheel.home import Home
from flywheel.lineage import Dataset, Deployment, Product
from storage.database import reading
from storage.graded import pass_rates
from storage.rules.rule import Known
from storage.verdicts import VERDICT, reviews

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_Kind = TypeVar("_Kind", Dataset, Deployment)
_LAST = (1 << 62) - 1
_NOW = """SELECT quantile_disc(ended, 0.999) FROM traces
    WHERE project = $project AND since <= $sequence AND ended IS NOT NULL"""
"""The latest moment that anything tells of, but for the last thousandth: one sender's wrong clock
must not make all others' data old."""
_EARLIER = """SELECT body FROM datasets WHERE project = $project AND since <= $sequence
    ORDER BY since DESC, id"""
_CLUSTERS = """SELECT id, body ->> '$.attributes.cluster' AS cluster FROM problems
    WHERE cluster IS NOT NULL AND (environment = $environment
        OR trace_id IN (SELECT id FROM traces WHERE project = $project))"""
_REVIEWS = f"""SELECT trace_id, count(*), {VERDICT}
    FROM ({reviews("project = $project AND since <= $until")}) GROUP BY trace_id"""
"""Who settled what reviewers were at odds about is of one mind with them."""
_DEPLOYED = """SELECT body FROM deployments WHERE project = $project AND since <= $until"""
_SAMPLED = """SELECT run_id FROM traces
    WHERE project = $project AND origin = 'rollout' AND run_id IS NOT NULL
    ORDER BY since DESC, id LIMIT 1"""
_UNWILLING = """SELECT id FROM traces WHERE id IN (SELECT unnest($ids))
    AND (consent = 'denied' OR ($granted AND consent IS DISTINCT FROM 'granted')
        OR ($at IS NOT NULL AND expires <= $at))"""


def known_of(
    home: Home,
    *,
    project: str,
    traffic: str,
    environment: str,
    champion: Deployment,
    sequence: int,
    rules: Collection[str],
    product: Product = "rows",
    run_id: str | None = None,
    until: int | None = None,
) -> Known:
    """
    Args:
        traffic: the project whose answers are curated.
        sequence: the last transaction that the turn sees.
        rules: names of those that will run.
        product: that is made: only datasets of the same kind are earlier ones.
        run_id: the turn's own; its datasets are no earlier ones.
        until: the last transaction whose grades, reviews and deployments are seen. None = all.
    """
    named = set(rules)
    at = {"project": traffic, "sequence": sequence}
    seen = {"project": traffic, "until": _LAST if until is None else until}
    rates: dict[str, tuple[float, int]] = {}
    if {"difficulty", "balance"} & named:
        rates = pass_rates(home, traffic, champion.name, until=until)
    known = Known(
        project=project,
        deployments=_own([champion]),
        base=champion.base_model,
        pass_rates={name: rate for name, (rate, _) in rates.items()},
        tries={name: count for name, (_, count) in rates.items()},
        embeddings=home.embeddings,
    )
    with reading(home) as database:
        if database is None:
            return known
        earlier = _records(database, _EARLIER, at | {"project": project}, Dataset)
        return replace(
            known,
            deployments=_own([champion, *_records(database, _DEPLOYED, seen, Deployment)]),
            clusters=_clusters(database, traffic, environment) if "balance" in named else {},
            reviews=_people(database, seen) if "agreement" in named else {},
            now=_all(database, _NOW, at)[0][0],
            earlier=_accepted(earlier, product, run_id),
        )


def _clusters(database: "DuckDBPyConnection", traffic: str, environment: str) -> dict[str, str]:
    """Problem -> cluster."""
    return dict(_all(database, _CLUSTERS, {"project": traffic, "environment": environment}))


def _people(database: "DuckDBPyConnection", seen: dict[str, Any]) -> dict[str, tuple[int, float]]:
    """Trace -> how many reviewed it, and the mean of their verdicts."""
    return {trace: (count, yes) for trace, count, yes in _all(database, _REVIEWS, seen)}


def _own(deployments: Sequence[Deployment]) -> frozenset[str]:
    """Their names; what a provider answers is no answer of our models."""
    return frozenset(one.name for one in deployments if one.kind != "external")


def _accepted(datasets: Sequence[Dataset], product: Product, run_id: str | None) -> tuple[str, ...]:
    """Ids of those that passed their gate and may still be trained on."""
    return tuple(
        one.id
        for one in datasets
        if one.gate_passed and one.retired is None and run_id not in one.parents
        and one.product == product
    )  # fmt: skip


def unwilling(
    home: Home, traces: Collection[str], *, granted: bool, at: int | None = None
) -> set[str]:
    """Those of `traces` that may not be learnt from (`flywheel.consent`): their senders said no, or
    (`granted`) have not said yes, or that they must be gone by `at`."""
    if not traces:
        return set()
    with reading(home) as database:
        if database is None:
            return set()
        rows = _all(database, _UNWILLING, {"ids": sorted(traces), "granted": granted, "at": at})
    return {one for (one,) in rows}


def last_sampled(home: Home, project: str) -> str | None:
    """The run whose rollouts came last. None = there are none."""
    with reading(home) as database:
        if database is None:
            return None
        found = _all(database, _SAMPLED, {"project": project})
    return found[0][0] if found else None


def _all(database: "DuckDBPyConnection", query: str, values: dict[str, Any]) -> list[Any]:
    return database.execute(query, values).fetchall()


def _records(
    database: "DuckDBPyConnection", query: str, values: dict[str, Any], kind: type[_Kind]
) -> list[_Kind]:
    return [msgspec.json.decode(body, type=kind) for (body,) in _all(database, query, values)]
