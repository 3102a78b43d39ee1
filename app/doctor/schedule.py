"""Prefect: its database, the server and worker of this home, and each project's deployments."""

import os
from collections.abc import Generator, Iterator
from typing import Any

import httpx

from app.doctor.finding import Case, Finding, many, ok, warning, wrong
from app.doctor.projects import sound
from flywheel.project import Project

_WAIT_S = 8.0


def prefect(case: Case) -> Iterator[Finding]:
    from flows.server import record_of, running

    deployed = yield from _database(case)
    record = running(case.home)
    url = os.environ.get("PREFECT_API_URL") or (record.url if record else None)
    if record is None and record_of(case.home).exists():
        yield warning(
            "flywheel prefect ended without saying so: nothing runs on its schedule",
            "flywheel prefect; the end of logs/prefect.log may say why it ended",
        )
    if url is None:
        if deployed:
            yield warning(
                f"{many(deployed, 'deployment')}, and no server and worker to run them",
                "flywheel prefect (best as a service of the machine)",
            )
        else:
            yield ok("nothing is on a schedule: flywheel deploy PROJECT, then flywheel prefect")
        return
    yield from _server(case, url, worker=record is None or record.worker)


def _database(case: Case) -> Generator[Finding, None, int]:
    """Returns how many deployments it holds."""
    from storage.sqlite_file import count, tables

    file = case.home.prefect / "prefect.db"
    if not file.exists():
        yield ok("Prefect has no database here yet: the first turn is recorded in it")
        return 0
    try:
        deployed = count(file, "deployment") if "deployment" in tables(file) else 0
    except (OSError, ValueError) as error:
        yield wrong(
            f"Prefect's database {file} cannot be used: {error}",
            f"mv {file} {file}.broken, then flywheel deploy PROJECT: turns go on from their own "
            "files",
        )
        return 0
    yield ok("Prefect's database opens")
    return deployed


def _server(case: Case, url: str, *, worker: bool) -> Iterator[Finding]:
    user, _, password = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
    auth = (user, password) if password else None
    try:
        with httpx.Client(base_url=url, timeout=_WAIT_S, trust_env=False, auth=auth) as http:
            answer = http.get("/health")
            if answer.status_code in (401, 403):
                yield warning(f"Prefect at {url} asks for a password", "PREFECT_API_AUTH_STRING")
                return
            answer.raise_for_status()
            yield ok(f"Prefect's server at {url} answers")
            yield from _workers(http, worker)
            for project in sound(case):
                yield from _deployments(case, http, project)
    except httpx.HTTPError as error:
        yield wrong(
            f"Prefect's server at {url} does not answer as it should: "
            f"{error or type(error).__name__}",
            "flywheel prefect; logs/prefect.log of the home says more",
        )


def _workers(http: httpx.Client, worker: bool) -> Iterator[Finding]:
    answer = http.post("/work_pools/flywheel/workers/filter", json={})
    if answer.status_code == 404:
        return  # nothing was ever deployed on it
    online = [one["name"] for one in answer.json() if one["status"] == "ONLINE"]
    if online:
        yield ok(f"{many(len(online), 'worker')} of Prefect at work: {', '.join(online)}")
    elif worker:
        yield wrong(
            "no worker of Prefect is at work: what is due waits",
            "flywheel prefect starts one; logs/worker.log of the home says why it ended",
        )
    else:
        yield warning("flywheel prefect runs without a worker", "flywheel prefect, not --no-worker")
    pool = http.get("/work_pools/flywheel").json()
    if pool.get("is_paused"):
        yield warning("Prefect's work pool is paused", "prefect work-pool resume flywheel")
    late = {"flow_runs": {"state": {"name": {"any_": ["Late"]}}}}
    count = http.post("/flow_runs/count", json=late).json()
    if isinstance(count, int) and count:
        yield warning(f"{many(count, 'run')} of Prefect late", "flywheel prefect: a worker is due")


def _deployments(case: Case, http: httpx.Client, project: Project) -> Iterator[Finding]:
    named = {"name": {"any_": [project.name]}, "tags": {"all_": ["flywheel"]}}
    there = http.post("/deployments/filter", json={"deployments": named})
    there.raise_for_status()
    have = {one["entrypoint"].rpartition(":")[2]: one for one in there.json()}
    again = f"flywheel deploy {project.folder}"
    if not have:
        yield ok(f"{project.name} is not on a schedule: {again}")
        return
    other = {_home_of(one) for one in have.values()} - {str(case.home.root)}
    if other:
        yield warning(f"{project.name} is deployed from another home: {other.pop()}", again)
        return
    wanted = _wanted(case, project)
    missing, more = sorted(set(wanted) - set(have)), sorted(set(have) - set(wanted))
    differ = sorted(flow for flow in set(wanted) & set(have) if wanted[flow] != _times(have[flow]))
    for what, flows in (("are missing", missing), ("are no more", more), ("differ", differ)):
        if flows:
            yield warning(
                f"{project.name}: deployments that {what} by flywheel.toml: {', '.join(flows)}",
                again,
            )
    paused = sorted(flow for flow, one in have.items() if one.get("paused"))
    if paused:
        yield warning(
            f"{project.name}: paused in Prefect: {', '.join(paused)}",
            f"prefect deployment schedule resume, or {again}",
        )
    if not missing and not more and not differ:
        yield ok(f"{project.name}: {many(len(have), 'deployment')} as flywheel.toml wants them")


def _wanted(case: Case, project: Project) -> dict[str, list[tuple[Any, str]]]:
    """Flow -> its times, by the project's file."""
    from flows.deployments import definition

    return {
        one["entrypoint"].rpartition(":")[2]: [_time(each) for each in one["schedules"]]
        for one in definition(case.home, [project])["deployments"]
    }


def _times(deployment: dict[str, Any]) -> list[tuple[Any, str]]:
    return [_time(one["schedule"]) for one in deployment["schedules"]]


def _time(schedule: dict[str, Any]) -> tuple[Any, str]:
    every = schedule.get("cron") or float(schedule["interval"])
    return every, str(schedule.get("timezone") or "UTC")


def _home_of(deployment: dict[str, Any]) -> str:
    env = (deployment.get("job_variables") or {}).get("env") or {}
    return str(env.get("FLYWHEEL_HOME", "unknown"))
