"""The watch: what it takes to take a challenger out, and what it leaves behind."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flywheel.home import Home
from flywheel.lineage import Decision, Deployment
from flywheel.serving_section import ReleaseSection
from serving import routing
from serving.intents import read_intent
from serving.observing import Seen
from serving.routing import ProjectRoute, Routing, base_deployment
from serving.watch import Watch, watched
from storage.committer import commit
from storage.queries import records
from tests.serving.running import body, running
from tests.serving.scripted_upstream import upstream

SECTION = ReleaseSection()
CHALLENGER = Deployment(
    name="support-v3", project="support", version=3, base_model="base", adapter="runs/3/adapter"
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    begin(Home(tmp_path))
    return Home(tmp_path)


def begin(home: Home, since: int = 1, share: float = 0.1) -> None:
    route = ProjectRoute(
        project="support", base_model="base", champion=base_deployment("support", "base"),
        challenger=CHALLENGER, share=share, since=since,
    )  # fmt: skip
    now = routing.read(home)
    routing.replace(home, Routing(version=now.version, projects={"support": route}))


def watch_of(home: Home, told: Callable[[], None] = lambda: None) -> Watch:
    return Watch(home, frozenset({"support"}), lambda _: SECTION, told)


def seen(challenger: bool, **more: Any) -> Seen:
    name = CHALLENGER.name if challenger else "support-v0"
    usual: dict[str, Any] = {
        "end": "answered", "canary": True, "total_s": 1.0, "output_tokens": 20, "refusal": False,
    }  # fmt: skip
    return Seen(project="support", deployment=name, at=1, **(usual | more))


def traffic(
    watch: Watch, count: int, *, seed: int = 0, share: float = 0.1, **challenger: Callable[..., Any]
) -> int | None:
    """Answers of both arms, looked at after every fifth. Returns after how many the challenger was
    taken out; None = it never was.

    Args:
        challenger: field of `Seen` -> what the challenger's value is, of a random number.
    """
    draw = random.Random(seed)
    for number in range(1, count + 1):
        arm, seconds = draw.random() < share, draw.lognormvariate(0, 0.5)
        given: dict[str, Any] = {"total_s": seconds, "output_tokens": int(40 * seconds)}
        given["end"] = "answered" if draw.random() > 0.01 else "failed"
        if arm:
            given |= {name: value(given, draw.random()) for name, value in challenger.items()}
        watch.hear(seen(arm, **given))
        if number % 5 == 0:
            asyncio.run(watch.look())
            if routing.canary_of(watch._home, "support") is None:
                return number
    return None


def decisions(home: Home) -> list[Decision]:
    commit(home)
    return records(home, "decision", project="support")


BAD: dict[str, tuple[int, dict[str, Callable[..., Any]]]] = {
    "errors": (300, {"end": lambda given, u: "failed" if u < 0.5 else "answered"}),
    "broken": (400, {"broken": lambda given, u: "no JSON" if u < 0.5 else None}),
    "refusals": (500, {"refusal": lambda given, u: u < 0.5}),
    "latency": (900, {"total_s": lambda given, u: 5 * given["total_s"]}),
    "tokens": (1500, {"output_tokens": lambda given, u: 6 * given["output_tokens"]}),
}
"""Rail -> requests within which it breaks at a tenth of them, and what the challenger does."""


@pytest.mark.parametrize("rail", BAD)
def test_each_rail_takes_a_bad_challenger_out(home: Home, rail: str) -> None:
    most, does = BAD[rail]
    after = traffic(watch_of(home), most, **does)
    assert after is not None
    (decision,) = decisions(home)
    assert (decision.outcome, decision.gate, decision.by) == (
        "rolled_back", "canary", "guard rails",
    )  # fmt: skip
    assert (decision.deployment, decision.replaced) == ("support-v0", "support-v3")
    assert decision.evidence["rail"] == rail and f"rail {rail} allows" in decision.reason
    assert {one["rail"] for one in decision.evidence["rails"]} >= set(BAD)


def test_one_that_is_alike_stays_in(home: Home) -> None:
    watch = watch_of(home)
    assert traffic(watch, 1500, seed=7, share=0.3) is None
    assert decisions(home) == []


def test_mlflow_is_told_by_somebody_else_and_the_intent_waits_for_it(home: Home) -> None:
    calls: list[int] = []
    watch = watch_of(home, lambda: calls.append(1))
    traffic(watch, 300, end=lambda given, u: "failed")
    left = read_intent(home, "support")
    assert calls == [1] and left is not None and left.decided
    assert left.ends is not None and left.ends.name == "support-v3"


def test_what_was_counted_survives_a_restart_and_not_another_canary(home: Home) -> None:
    first = watch_of(home)
    for _ in range(30):
        first.hear(seen(False))
    first.hear(seen(True, end="failed"))
    asyncio.run(first.look())
    second = watch_of(home)
    second.hear(seen(True, end="failed"))
    second._kept = 0
    asyncio.run(second.look())
    kept = watched(home, "support")
    assert kept and kept.rails.rates["errors"].challenger.n == 2
    assert kept.rails.rates["errors"].champion.n == 30
    begin(home, since=2)
    third = watch_of(home)
    third.hear(seen(True, end="failed"))
    asyncio.run(third.look())
    kept = watched(home, "support")
    assert kept and kept.rails.rates["errors"].challenger.n == 1


def test_other_requests_say_nothing(home: Home) -> None:
    watch = watch_of(home)
    for end in ("refused", "hung_up"):
        watch.hear(seen(True, end=end))
    watch.hear(seen(True, end="failed", canary=False))
    watch.hear(seen(True, end="failed", shadow=True))
    watch.hear(Seen(project="other", deployment="other-v1", end="failed", at=1, canary=True))
    asyncio.run(watch.look())
    kept = watched(home, "support")
    assert kept is None or not any(one.challenger.n for one in kept.rails.rates.values())


@pytest.fixture
def engine_url() -> Iterator[str]:
    with upstream() as scripted:
        scripted.not_loaded.add("support-v3")
        yield scripted.url


def test_requests_to_a_gateway_whose_challenger_is_gone_end_its_canary(
    home: Home, engine_url: str
) -> None:
    begin(home, since=2, share=0.5)
    watch = watch_of(home)
    with running(home.root, engine_url) as up:
        up.gateway.observers.add(watch.hear)
        for number in range(80):
            url = f"{up.url}/v1/chat/completions"
            assert httpx.post(url, content=body(user=f"user-{number}")).status_code == 200
            asyncio.run(watch.look())
            if routing.canary_of(home, "support") is None:
                break
    assert number < 79
    assert routing.read(home).projects["support"].champion.name == "support-v0"


@pytest.mark.slow
def test_a_whole_server_takes_a_failing_challenger_out_by_itself(tmp_path: Path) -> None:
    from tests.serving.test_server import Server, wait

    server = Server(tmp_path)
    begin(server.home, since=3, share=0.5)
    (server.home.root / "runs/3/adapter").mkdir(parents=True)
    try:
        record = server.up()
        for number in range(200):
            name = f"c{number}"
            said = f"error at {CHALLENGER.name}"
            httpx.post(
                f"{record.url}/v1/chat/completions",
                content=body(said),
                headers={"x-conversation-id": name},
            )
            if routing.canary_of(server.home, "support") is None:
                break
        wait(lambda: routing.canary_of(server.home, "support") is None)
        (decision,) = decisions(server.home)
        assert (decision.by, decision.evidence["rail"]) == ("guard rails", "errors")
        wait(lambda: read_intent(server.home, "support") is None)  # and MLflow knows
    finally:
        server.end()
