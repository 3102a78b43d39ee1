"""What answers requests: the server's record, the gateway, the engine and what it says."""

import math
from collections.abc import Iterator
from typing import Any

import httpx

from app.doctor.finding import Case, Finding, ok, warning, wrong
from app.doctor.projects import sound
from flywheel.errors import CorruptFile, FlywheelError
from serving.engines.reach import Access
from serving.presence import ServerRecord, running
from serving.routing import ProjectRoute, is_external, read, served_as

_WAIT_S = 5.0
_PROMPT = [{"role": "user", "content": "1 2 3"}]


def server(case: Case) -> Iterator[Finding]:
    record = running(case.home)
    if record is not None:
        yield ok(f"a server runs: pid {record.pid}, {record.url}, {', '.join(record.projects)}")
        yield from _gateway(case, record)
    elif case.home.server.exists():
        yield warning(
            "the server of this home ended without saying so: its record names no living process",
            "flywheel serve PROJECT; the end of logs/server.log may say why",
        )
    else:
        yield ok("no server runs: flywheel serve PROJECT starts one")


def engines(case: Case) -> Iterator[Finding]:
    record = running(case.home)
    if record is not None:
        yield from _engine(
            record.engine_url, _served(case, record), "logs/engine.log", record.access
        )
        return
    outside = {one.serving.engine_url: one.name for one in sound(case) if one.serving.engine_url}
    for url, name in outside.items():
        key = case.settings.engine_key
        access = Access(kind="vllm", key=key.get_secret_value() if key else None)
        yield from _engine(str(url), [], f"whoever runs it; engine_url of {name}", access)
    if not outside:
        yield ok("no engine runs: a server starts it")


def _gateway(case: Case, record: ServerRecord) -> Iterator[Finding]:
    try:
        with httpx.Client(
            base_url=record.url, timeout=_WAIT_S, trust_env=False, verify=record.verify()
        ) as http:
            health: dict[str, Any] = http.get("/health").json()
            ready = http.get("/ready")
    except (httpx.HTTPError, ValueError) as error:
        yield wrong(
            f"the gateway at {record.url} does not answer: {error or type(error).__name__}",
            f"kill {record.pid}, then flywheel serve PROJECT; logs/server.log says more",
        )
        return
    if ready.status_code == 200:
        yield ok(f"the gateway is ready: {health.get('running', 0)} requests under way")
    else:
        yield wrong(f"the gateway is not ready: {_words(ready)}", "see the engine's lines below")
    yield from _counted(health)
    yield from _as_routed(case, health)


def _counted(health: dict[str, Any]) -> Iterator[Finding]:
    recording, routed = health.get("recording", {}), health.get("routing", {})
    if recording.get("problem"):
        yield wrong(
            f"answers are not recorded: {recording['problem']}", "free space where the home is"
        )
    if routed.get("problem"):
        yield wrong(
            f"the gateway serves by an older routing file: {routed['problem']}",
            "mend or move routing.json away; see the routing's lines",
        )
    lost = health.get("counts", {}).get("unrecorded", 0)
    if lost:
        yield warning(f"{lost} answers were served without a record", "free space; they are gone")


def _as_routed(case: Case, health: dict[str, Any]) -> Iterator[Finding]:
    try:
        routes = read(case.home).projects
    except CorruptFile:
        return  # the check of the routing tells
    for project, name in health.get("deployments", {}).items():
        route = routes.get(project)
        if route is not None and route.champion.name != name:
            yield warning(
                f"the gateway serves {name} for {project}; the routing file says "
                f"{route.champion.name}",
                "look again in a second; if it stays, start the server again",
            )


def _served(case: Case, record: ServerRecord) -> list[ProjectRoute]:
    try:
        routes = read(case.home).projects
    except CorruptFile:
        return []
    return [routes[name] for name in record.projects if name in routes]


def _engine(url: str, routes: list[ProjectRoute], look: str, access: Access) -> Iterator[Finding]:
    from serving.engines.client import EngineClient

    try:
        with EngineClient(url, timeout_s=_WAIT_S, access=access) as client:
            known = client.models()
            yield ok(f"the engine at {url} answers; it has {', '.join(sorted(known))}")
            for route in routes:
                yield from _loaded(route, known)
            yield from _speaks(client)
    except FlywheelError as error:
        yield wrong(str(error), f"{look}; the server starts its engine again by itself")


def _loaded(route: ProjectRoute, known: list[str]) -> Iterator[Finding]:
    if not is_external(route.champion) and served_as(route.champion) not in known:
        yield wrong(
            f"the engine does not have {route.champion.name}, which should answer",
            f"start the server again, or flywheel rollback of {route.project}; logs/engine.log",
        )
    before = route.previous
    if before and not is_external(before) and served_as(before) not in known:
        yield warning(
            f"the engine does not have {before.name}: a rollback would have to load it",
            "start the server again",
        )


def _speaks(client: Any) -> Iterator[Finding]:
    """Do ids and logprobs come, without which nothing that is answered can be trained on?"""
    answer = client.chat(
        "base", _PROMPT, max_tokens=2, temperature=1.0, logprobs=True, return_token_ids=True
    )
    choice = answer["choices"][0]
    ids = choice.get("token_ids")
    content = (choice.get("logprobs") or {}).get("content") or []
    probabilities = [entry.get("logprob") for entry in content]
    good = [one for one in probabilities if isinstance(one, float | int) and math.isfinite(one)]
    if not ids or not answer.get("prompt_token_ids"):
        yield wrong(
            "the engine gives no token ids: what it answers cannot be trained on",
            "a vLLM of the version in locks/vllm.txt, behind the same routes",
        )
    elif len(good) != len(ids) or any(one > 0 for one in good):
        yield wrong(
            f"the engine gives {len(good)} logprobs for {len(ids)} tokens",
            "start vLLM with --logprobs-mode processed_logprobs, as flywheel serve does",
        )
    else:
        yield ok("token ids and logprobs come with its answers")


def _words(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
