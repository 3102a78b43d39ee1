"""A challenger's share by the promotion protocol: with a real registry, store and routing file."""

import multiprocessing
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flywheel import failpoints
from flywheel.errors import EngineError, Refused, UsageError
from flywheel.home import Home
from flywheel.lineage import Decision, Deployment
from serving import routing
from serving.canary import end_canary
from serving.promotion import promote, reconcile, rollback, set_canary
from serving.reconcile import alone
from serving.registry import Registry
from serving.routing import ProjectRoute, Routing, base_deployment
from storage.committer import commit
from storage.queries import records
from tests.serving.scripted_adapters import ScriptedEngine, a_candidate

pytestmark = pytest.mark.slow  # MLflow takes seconds to import and to make its tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose champion is support-v1, with candidates support-v2 and support-v3."""
    home = Home(tmp_path_factory.mktemp("made"))
    first = a_candidate(home, "one")
    route = ProjectRoute(
        project="support", base_model="tiny", champion=base_deployment("support", "tiny")
    )
    routing.replace(home, Routing(projects={"support": route}))
    engine = ScriptedEngine(home.root / "engine")
    promote(home, first, engine=engine, registry=Registry(home), verify=dict, reason="r", by="turn")
    a_candidate(home, "two"), a_candidate(home, "three")
    commit(home)
    return home


@pytest.fixture
def home(made: Home, tmp_path: Path) -> Home:
    shutil.copytree(made.root, tmp_path / "home")
    return Home(tmp_path / "home")


@pytest.fixture
def engine(home: Home) -> ScriptedEngine:
    return ScriptedEngine(home.root / "engine")


def candidate(home: Home, number: int) -> Deployment:
    run = {2: "two", 3: "three"}[number]
    return Deployment(
        name=f"support-v{number}", project="support", version=number, base_model="tiny",
        adapter=f"runs/{run}/adapter", checkpoint_id=f"checkpoint-{run}", run_id=run,
        registry_version=str(number),
    )  # fmt: skip


def challenge(
    home: Home, engine: ScriptedEngine | None, number: int = 2, share: float = 0.1, **more: Any
) -> ProjectRoute:
    arguments: dict[str, Any] = {
        "engine": engine, "registry": Registry(home), "verify": lambda: {"largest": 0.0},
        "by": "ann", "reason": "let us see",
    }  # fmt: skip
    return set_canary(home, candidate(home, number), share, **(arguments | more))


def route_of(home: Home) -> ProjectRoute:
    return routing.read(home).projects["support"]


def decisions(home: Home) -> list[Decision]:
    commit(home)
    return [one for one in records(home, "decision", project="support")][1:]


def told(home: Home) -> list[tuple[str, str | None, Any]]:
    return [(one.outcome, one.deployment, one.evidence.get("share")) for one in decisions(home)]


def stands(home: Home, engine: ScriptedEngine, champion: str, challenger: str | None) -> None:
    """Asserts that routing, engine and MLflow say the same."""
    route = route_of(home)
    assert route.champion.name == champion
    assert (route.challenger and route.challenger.name) == challenger
    assert (route.share > 0) == (challenger is not None)
    aliases = Registry(home).aliases("support")
    assert aliases.get("champion") == route.champion.registry_version
    assert aliases.get("challenger") == (route.challenger and route.challenger.registry_version)
    assert set(engine.models()) == {one.name for one in routing.standing(route) if one.adapter}
    assert list(home.promotions.glob("*.json")) == []


def killed(step: str, action: Callable[[], object]) -> None:
    def child() -> None:
        failpoints.arm(f"promotion.after_{step}")
        action()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def test_a_share_is_given_changed_and_taken_away(home: Home, engine: ScriptedEngine) -> None:
    assert challenge(home, engine).share == 0.1
    stands(home, engine, "support-v1", "support-v2")
    challenge(home, engine, share=0.1)  # again: no change
    challenge(home, engine, share=0.4)
    stands(home, engine, "support-v1", "support-v2")
    challenge(home, None, share=0.0)
    engine.unload_adapter("support-v2")  # none ran that could have been told
    stands(home, engine, "support-v1", None)
    assert told(home) == [
        ("canary", "support-v2", 0.1), ("canary", "support-v2", 0.4), ("canary", "support-v2", 0),
    ]  # fmt: skip
    first = decisions(home)[0]
    assert (first.by, first.reason, first.replaced) == ("ann", "let us see", None)
    assert first.evidence["serving"] == {"largest": 0.0}


def test_another_challenger_takes_the_first_ones_place(home: Home, engine: ScriptedEngine) -> None:
    challenge(home, engine)
    challenge(home, engine, 3, 0.2)
    stands(home, engine, "support-v1", "support-v3")
    challenge(home, engine, 2, 0.0)  # is not the challenger any more
    stands(home, engine, "support-v1", "support-v3")


def test_promoting_the_challenger_ends_its_canary_and_another_one_leaves_it(
    home: Home, engine: ScriptedEngine
) -> None:
    def up(number: int) -> None:
        one = candidate(home, number)
        promote(home, one, engine=engine, registry=Registry(home), verify=dict, reason="r", by="b")

    began = challenge(home, engine, 3).since
    up(2)
    stands(home, engine, "support-v2", "support-v3")
    assert began and (route_of(home).since or 0) > began, "it begins anew, against the new one"
    up(3)
    stands(home, engine, "support-v3", None)


def test_a_rollback_ends_the_canary(home: Home, engine: ScriptedEngine) -> None:
    challenge(home, engine)
    rollback(home, "support", engine=engine, registry=Registry(home), by="ann", reason="odd")
    route = route_of(home)
    assert (route.champion.version, route.challenger, route.share) == (0, None, 0.0)
    assert engine.models() == ["support-v1"]
    assert Registry(home).aliases("support") == {"previous": "1"}


def test_the_serving_gate_stands_before_the_first_request(
    home: Home, engine: ScriptedEngine
) -> None:
    def refuse() -> dict[str, Any]:
        raise Refused("logprobs differ by 0.3")

    with pytest.raises(Refused, match=r"support-v2 does not answer a share: logprobs differ"):
        challenge(home, engine, verify=refuse)
    shutil.rmtree(home.runs / "three")
    with pytest.raises(Refused, match="no adapter in"):
        challenge(home, engine, 3)
    assert [one for one, *_ in told(home)] == ["refused", "refused"]
    assert route_of(home).challenger is None and engine.models() == ["support-v1"]


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0, float("nan"), float("inf")])
def test_what_is_no_share_is_told(home: Home, engine: ScriptedEngine, share: float) -> None:
    with pytest.raises(UsageError, match="share is from 0"):
        challenge(home, engine, share=share)


def test_the_champion_and_a_missing_engine_are_told(home: Home, engine: ScriptedEngine) -> None:
    champion = route_of(home).champion
    with pytest.raises(UsageError, match="is the champion"):
        set_canary(
            home, champion, 0.1, engine=engine, registry=Registry(home), verify=dict, by="a",
            reason="",
        )  # fmt: skip
    with pytest.raises(EngineError, match="no engine runs"):
        challenge(home, None)
    assert told(home) == [] and list(home.promotions.glob("*.json")) == []


@pytest.mark.parametrize(("version", "ends"), [(None, True), ("3", True), ("2", False)])
def test_what_is_ended_is_the_canary_that_runs_at_the_change(
    home: Home, engine: ScriptedEngine, version: str | None, ends: bool
) -> None:
    """While somebody waits to end the canary of support-v2, support-v3 takes its place."""
    challenge(home, engine)
    third = ProjectRoute(
        project="support", base_model="tiny", champion=route_of(home).champion,
        challenger=candidate(home, 3), share=0.5,
    )  # fmt: skip

    def end() -> ProjectRoute:
        return end_canary(
            home, "support", version, engine=engine, registry=Registry(home), by="ann", reason="r"
        )

    with ThreadPoolExecutor(1) as beside:
        with alone(home, "support"):
            waiting = beside.submit(end)
            now = routing.read(home)
            routing.replace(home, Routing(version=now.version, projects={"support": third}))
        if ends:
            assert waiting.result().challenger is None and route_of(home).share == 0
            assert told(home)[-1] == ("canary", "support-v3", 0.0)
        else:
            with pytest.raises(UsageError, match="support-v3 answers a share"):
                waiting.result()
            assert route_of(home).share == 0.5


def test_of_two_that_are_asked_for_at_once_the_second_takes_the_firsts_place(
    home: Home, engine: ScriptedEngine
) -> None:
    with ThreadPoolExecutor(2) as both:
        with alone(home, "support"):  # neither has begun before both wait
            waiting = [both.submit(challenge, home, engine, number) for number in (2, 3)]
        for one in waiting:
            one.result()
    runs = route_of(home).challenger
    assert runs is not None and runs.version in (2, 3)
    stands(home, engine, "support-v1", runs.name)
    first = "support-v3" if runs.version == 2 else "support-v2"
    assert told(home) == [("canary", first, 0.1), ("canary", runs.name, 0.1)]


def test_an_ending_that_was_killed_and_asked_for_again_is_decided_once(
    home: Home, engine: ScriptedEngine
) -> None:
    challenge(home, engine)
    end: dict[str, Any] = {
        "engine": engine, "registry": Registry(home), "by": "ann", "reason": "r",
    }  # fmt: skip
    killed("intent", lambda: end_canary(home, "support", None, **end))
    end_canary(home, "support", None, **end)
    stands(home, engine, "support-v1", None)
    assert [one for one, *_ in told(home)] == ["canary", "canary"]
    with pytest.raises(UsageError, match="nothing answers a share"):
        end_canary(home, "support", None, **end)


@pytest.mark.parametrize("step", ["intent", "load", "routing", "alias", "decision"])
def test_killed_at_any_step_it_is_put_in_line_and_decided_once(
    home: Home, engine: ScriptedEngine, step: str
) -> None:
    killed(step, lambda: challenge(home, engine))
    reconcile(home, Registry(home), engine)
    happened = step in ("routing", "alias", "decision")
    if not happened:
        Registry(home).set_aliases("support", {"challenger": None})
    stands(home, engine, "support-v1", "support-v2" if happened else None)
    assert [one for one, *_ in told(home)] == ["canary" if happened else "abandoned"]
    challenge(home, engine)
    stands(home, engine, "support-v1", "support-v2")
    killed("routing", lambda: challenge(home, engine, share=0.0))
    reconcile(home, Registry(home), engine)
    stands(home, engine, "support-v1", None)
    assert reconcile(home, Registry(home), engine) == []
