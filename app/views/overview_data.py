"""What serves a project and since when: routing file, running server, ledger, MLflow's aliases.

Enters a home and a project's ledger; leaves plain records. What is not known is None or said in
words, never guessed.
"""

from pathlib import Path
from typing import Any

from msgspec import field

from app.views.ledger_data import Ledger, took_over
from flywheel.home import Home
from flywheel.lineage import Decision
from flywheel.records import Record


class Server(Record, frozen=True, kw_only=True):
    url: str
    pid: int
    projects: tuple[str, ...]
    state: str
    """Of its engine: ready, starting, restarting …; "no answer" where the gateway gives none."""
    reason: str = ""
    restarts: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Serving(Record, frozen=True, kw_only=True):
    deployment: str
    base_model: str
    since: int | None
    """None = no decision in the ledger says."""
    because: Decision | None
    previous: str | None
    challenger: str | None
    share: float
    """Of the requests that the challenger answers."""


def serving(home: Home, project: str, known: Ledger) -> Serving | None:
    """None = no server has ever routed this project."""
    from serving.routing import read

    route = read(home).projects.get(project)
    if route is None:
        return None
    last = next((one for one in reversed(took_over(known))), None)
    because = last if last is not None and last.deployment == route.champion.name else None
    return Serving(
        deployment=route.champion.name,
        base_model=Path(route.base_model).name or route.base_model,
        since=because.at if because else None,
        because=because,
        previous=route.previous.name if route.previous else None,
        challenger=route.challenger.name if route.challenger else None,
        share=route.share if route.challenger else 0.0,
    )


def server(home: Home, *, wait_s: float = 1.0) -> Server | None:
    """None = none runs in this home."""
    import httpx

    from serving.presence import running

    record = running(home)
    if record is None:
        return None
    said: dict[str, Any] = {}
    try:
        said = httpx.get(
            f"{record.url}/health", timeout=wait_s, trust_env=False, verify=record.verify()
        ).json()
        state, reason = said["engine"]["state"], said["engine"]["reason"] or ""
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        state, reason = "no answer", f"{type(error).__name__}: {error}"
    engine = said.get("engine") or {}
    return Server(
        url=record.url,
        pid=record.pid,
        projects=record.projects,
        state=state,
        reason=reason or (said.get("recording") or {}).get("problem") or "",
        restarts=engine.get("restarts") or 0,
        counts=said.get("counts") or {},
    )


def waiting_candidates(known: Ledger, champion: str | None) -> list[Decision]:
    """Candidates that passed and wait for a person's yes, the newest first: nothing was decided of
    them since, and they were compared with what still serves."""
    compared = {one.id: one.champion for one in known.evaluations}
    last = {one.deployment: one for one in known.decisions if one.deployment}
    return [
        one
        for one in sorted(last.values(), key=lambda one: one.at, reverse=True)
        if one.outcome == "waiting" and compared.get(one.evaluation_id or "", champion) == champion
    ]


def out_of_line(home: Home, project: str) -> str:
    """How MLflow's aliases differ from the routing file; "" = they do not. The challenger's alias
    also names a candidate that is not routed, so it alone is no difference."""
    from serving.intents import aliases_of
    from serving.routing import read
    from storage.registered import registered

    route = read(home).projects.get(project)
    said = registered(home, project)
    if route is None or (not said.versions and not said.unknown):
        return ""
    if said.unknown:
        return said.unknown
    wanted = {name: one for name, one in aliases_of(route).items() if name != "challenger"}
    off = [
        f"{alias} is {_version(said.aliases.get(alias))}, it should be {_version(version)}"
        for alias, version in wanted.items()
        if said.aliases.get(alias) != version
    ]
    return "; ".join(off)


def _version(version: str | None) -> str:
    return "on no version" if version is None else f"on version {version}"
