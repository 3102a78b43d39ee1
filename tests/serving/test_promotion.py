import multiprocessing
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel import failpoints
from flywheel.errors import Busy, CorruptFile, EngineError, FlywheelError, Refused, UsageError
from flywheel.home import Home
from flywheel.lineage import Decision, Deployment, Evaluation, SliceResult
from serving import routing
from serving.intents import read_intent
from serving.promotion import promote, reconcile, rollback
from serving.registry import Registry
from serving.routing import ProjectRoute, Routing, base_deployment
from storage.committer import commit
from storage.inbox import Inbox
from storage.locks import held
from storage.queries import records
from tests.serving.scripted_adapters import ScriptedEngine, a_candidate

pytestmark = pytest.mark.slow  # MLflow takes seconds to import and to make its tables

STEPS = ["intent", "load", "check", "routing", "alias", "decision"]
HAPPENED = {"routing", "alias", "decision"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Home(tmp_path_factory.mktemp("made"))
    a_candidate(home, "warm", project="warm")
    return home.mlflow / "mlflow.db"


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.mlflow.mkdir(parents=True)
    shutil.copy(made, home.mlflow / "mlflow.db")
    route = ProjectRoute(
        project="support", base_model="tiny", champion=base_deployment("support", "tiny")
    )
    routing.replace(home, Routing(projects={"support": route}))
    return home


@pytest.fixture
def engine(tmp_path: Path) -> ScriptedEngine:
    return ScriptedEngine(tmp_path / "engine")


def run_promotion(
    home: Home, engine: ScriptedEngine, candidate: Deployment, **changed: Any
) -> Deployment:
    arguments: dict[str, Any] = {
        "engine": engine,
        "registry": Registry(home),
        "verify": lambda: {"largest": 0.0001},
        "reason": "better by 0.3",
        "by": "flywheel turn",
        "run_id": candidate.run_id,
    }
    return promote(home, candidate, **(arguments | changed))


def run_rollback(home: Home, engine: ScriptedEngine | None) -> Deployment:
    return rollback(
        home, "support", engine=engine, registry=Registry(home), by="ann", reason="complaints"
    )


def decisions(home: Home) -> list[Decision]:
    commit(home)
    return list(records(home, "decision", project="support"))


def outcomes(home: Home) -> list[tuple[str, str | None]]:
    return [(decision.outcome, decision.deployment) for decision in decisions(home)]


def route_of(home: Home) -> ProjectRoute:
    return routing.read(home).projects["support"]


def killed(step: str, action: Callable[[], object]) -> None:
    """Runs `action` in a forked child that is killed after that step of the protocol."""

    def child() -> None:
        failpoints.arm(f"promotion.after_{step}")
        action()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def consistent(home: Home, engine: ScriptedEngine) -> str:
    """Asserts that routing, engine, MLflow and ledger say the same; returns the champion's name."""
    route = route_of(home)
    serving = [route.champion, *([route.previous] if route.previous else [])]
    names = {each.name for each in serving if each.adapter}
    assert set(engine.models()) >= names
    aliases = Registry(home).aliases("support")
    assert aliases.get("champion") == route.champion.registry_version
    assert aliases.get("previous") == (route.previous and route.previous.registry_version)
    assert list(home.promotions.glob("*.json")) == []
    changes = [each for each in decisions(home) if each.outcome in ("promoted", "rolled_back")]
    if changes:
        assert changes[-1].deployment == route.champion.name
    else:
        assert route.champion.version == 0
    assert len({each.id for each in decisions(home)}) == len(decisions(home))
    known = {each.name for each in records(home, "deployment", project="support")}
    assert known >= {each.name for each in serving if each.version}
    return route.champion.name


# --- promote -------------------------------------------------------------------------------------


def test_a_candidate_that_loads_and_checks_becomes_champion_everywhere(
    home: Home, engine: ScriptedEngine
) -> None:
    candidate = a_candidate(home, "one")
    evidence = {"difference": 0.3}
    promoted = run_promotion(home, engine, candidate, evidence=evidence, evaluation_id="e1")
    assert promoted == candidate
    assert consistent(home, engine) == "support-v1"
    assert route_of(home).previous == base_deployment("support", "tiny")
    assert "challenger" not in Registry(home).aliases("support")
    [decision] = decisions(home)
    assert (decision.outcome, decision.gate) == ("promoted", "serving")
    assert (decision.deployment, decision.replaced) == ("support-v1", "support-v0")
    assert (decision.reason, decision.by, decision.run_id, decision.evaluation_id) == (
        "better by 0.3", "flywheel turn", "one", "e1",
    )  # fmt: skip
    assert decision.evidence == {"difference": 0.3, "serving": {"largest": 0.0001}}
    tags = Registry(home).tags(candidate)
    assert (tags["flywheel.decision"], tags["flywheel.evaluation"]) == (decision.id, "e1")


def test_the_previous_stays_loaded_and_the_one_before_it_goes(
    home: Home, engine: ScriptedEngine
) -> None:
    for run in ("one", "two", "three"):
        run_promotion(home, engine, a_candidate(home, run))
    assert engine.models() == ["support-v2", "support-v3"]
    assert Registry(home).aliases("support") == {"champion": "3", "previous": "2"}
    assert consistent(home, engine) == "support-v3"


def test_promoting_what_serves_already_changes_nothing(home: Home, engine: ScriptedEngine) -> None:
    candidate = a_candidate(home, "one")
    run_promotion(home, engine, candidate)
    before = routing.read(home)
    assert run_promotion(home, engine, candidate) == candidate
    assert routing.read(home) == before
    assert outcomes(home) == [("promoted", "support-v1")]


def test_where_only_mlflow_could_not_be_told_it_says_that_the_version_serves(
    home: Home, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise FlywheelError("something else writes")

    candidate = a_candidate(home, "one")
    monkeypatch.setattr(Registry, "set_aliases", refused)
    with pytest.raises(FlywheelError, match=r"support-v1 serves now, but .* something else writes"):
        run_promotion(home, engine, candidate)
    with pytest.raises(FlywheelError, match="support-v1 serves"):
        run_promotion(home, engine, candidate)
    monkeypatch.undo()
    assert run_promotion(home, engine, candidate) == candidate
    assert outcomes(home) == [("promoted", "support-v1")]


def test_a_project_that_nothing_serves_yet_has_its_base_as_the_first_champion(
    home: Home, engine: ScriptedEngine
) -> None:
    run_promotion(home, engine, a_candidate(home, "one", project="billing"))
    route = routing.read(home).projects["billing"]
    assert (route.champion.name, route.previous) == (
        "billing-v1",
        base_deployment("billing", "tiny"),
    )
    assert route_of(home).champion.name == "support-v0"


def refuse() -> dict[str, Any]:
    raise Refused("logprobs differ by 0.3")


def test_a_failed_check_leaves_the_old_champion_and_a_decision(
    home: Home, engine: ScriptedEngine
) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    before = routing.read(home)
    with pytest.raises(Refused, match=r"support-v2 was not promoted: logprobs differ by 0.3"):
        run_promotion(home, engine, a_candidate(home, "two"), verify=refuse, evidence={"n": 1})
    assert routing.read(home) == before
    assert engine.models() == ["support-v1"]
    assert outcomes(home) == [("promoted", "support-v1"), ("refused", "support-v2")]
    refused = decisions(home)[-1]
    assert (refused.gate, refused.replaced, refused.evidence) == ("serving", None, {"n": 1})
    assert consistent(home, engine) == "support-v1"


@pytest.mark.parametrize("broken", ["no files", "another base", "corrupt"])
def test_what_cannot_be_loaded_is_refused(home: Home, engine: ScriptedEngine, broken: str) -> None:
    candidate = a_candidate(home, "one")
    changed: dict[str, Any] = {}
    if broken == "no files":
        shutil.rmtree(home.path(candidate.adapter or ""))
    elif broken == "another base":
        candidate = msgspec.structs.replace(candidate, base_model="another")
    else:

        def corrupt() -> dict[str, Any]:
            raise CorruptFile("probe.json is not a probe file")

        changed["verify"] = corrupt
    with pytest.raises(Refused, match="support-v1 was not promoted"):
        run_promotion(home, engine, candidate, **changed)
    assert outcomes(home) == [("refused", "support-v1")]
    assert engine.models() == []
    assert consistent(home, engine) == "support-v0"


def test_an_engine_that_is_gone_decides_nothing_and_may_be_tried_again(
    home: Home, engine: ScriptedEngine
) -> None:
    candidate = a_candidate(home, "one")
    engine.dead = True
    with pytest.raises(EngineError):
        run_promotion(home, engine, candidate)
    assert consistent(home, engine) == "support-v0" and outcomes(home) == []
    engine.dead = False
    run_promotion(home, engine, candidate)
    assert consistent(home, engine) == "support-v1"


def test_a_candidate_whose_champion_was_replaced_meanwhile_is_told(
    home: Home, engine: ScriptedEngine
) -> None:
    first, second = a_candidate(home, "one"), a_candidate(home, "two")
    nothing = SliceResult(
        name="all", problems=1, champion=None, candidate=None, difference=None, low=None, high=None
    )
    evaluation = Evaluation(
        id="e2", project="support", run_id="two", champion="support-v0", candidate="support-v2",
        overall=nothing,
    )  # fmt: skip
    Inbox(home).append([evaluation])
    commit(home)
    run_promotion(home, engine, first, against="support-v0")
    for how in ({"against": "support-v0"}, {"evaluation_id": "e2"}):
        with pytest.raises(Refused, match="compared with support-v0, and support-v1 has been"):
            run_promotion(home, engine, second, **how)
    assert consistent(home, engine) == "support-v1"
    run_promotion(home, engine, second, against="support-v1")
    assert consistent(home, engine) == "support-v2"


def test_of_two_promotions_at_once_one_wins_and_the_other_is_told(
    home: Home, engine: ScriptedEngine
) -> None:
    candidates = [a_candidate(home, "one"), a_candidate(home, "two")]
    told: list[str] = []

    def run(candidate: Deployment) -> None:
        try:
            run_promotion(home, engine, candidate, against="support-v0")
        except Refused as refusal:
            told.append(str(refusal))

    threads = [threading.Thread(target=run, args=(each,)) for each in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 1 and "has been promoted since" in told[0]
    assert sorted(outcome for outcome, _ in outcomes(home)) == ["promoted", "refused"]
    consistent(home, engine)


def test_other_projects_routes_may_change_meanwhile_but_not_its_own(
    home: Home, engine: ScriptedEngine
) -> None:
    def change(project: str) -> dict[str, Any]:
        now = routing.read(home)
        champion = msgspec.structs.replace(
            base_deployment(project, "tiny"), name=f"{project}-v7", version=7
        )
        other = ProjectRoute(project=project, base_model="tiny", champion=champion)
        routing.replace(
            home, msgspec.structs.replace(now, projects={**now.projects, project: other})
        )
        return {}

    run_promotion(home, engine, a_candidate(home, "one"), verify=lambda: change("billing"))
    assert set(routing.read(home).projects) == {"billing", "support"}
    assert consistent(home, engine) == "support-v1"
    with pytest.raises(Refused, match="changed meanwhile by something else"):
        run_promotion(home, engine, a_candidate(home, "two"), verify=lambda: change("support"))
    assert route_of(home).champion.name == "support-v7"


# --- rollback ------------------------------------------------------------------------------------


def test_rolling_back_lets_the_previous_answer_and_again_the_other(
    home: Home, engine: ScriptedEngine
) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    run_promotion(home, engine, a_candidate(home, "two"))
    assert run_rollback(home, engine).name == "support-v1"
    assert consistent(home, engine) == "support-v1"
    assert Registry(home).aliases("support") == {"champion": "1", "previous": "2"}
    last = decisions(home)[-1]
    assert (last.outcome, last.gate, last.by, last.reason, last.replaced) == (
        "rolled_back", "person", "ann", "complaints", "support-v2",
    )  # fmt: skip
    assert run_rollback(home, engine).name == "support-v2"
    assert consistent(home, engine) == "support-v2"


def test_rolling_back_to_the_base_model_leaves_no_champion_alias(
    home: Home, engine: ScriptedEngine
) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    assert run_rollback(home, engine).version == 0
    assert Registry(home).aliases("support") == {"previous": "1"}
    assert consistent(home, engine) == "support-v0"


@pytest.mark.parametrize("how", ["none runs", "it is dead"])
def test_rolling_back_needs_no_engine(home: Home, engine: ScriptedEngine, how: str) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    run_promotion(home, engine, a_candidate(home, "two"))
    engine.dead = how == "it is dead"
    assert run_rollback(home, engine if engine.dead else None).name == "support-v1"
    assert consistent(home, engine) == "support-v1"


def test_a_previous_that_the_engine_cannot_load_is_not_rolled_back_to(
    home: Home, engine: ScriptedEngine
) -> None:
    first = a_candidate(home, "one")
    run_promotion(home, engine, first)
    run_promotion(home, engine, a_candidate(home, "two"))
    engine.unload_adapter("support-v1")
    shutil.rmtree(home.path(first.adapter or ""))
    with pytest.raises(Refused, match="no adapter in"):
        run_rollback(home, engine)
    assert route_of(home).champion.name == "support-v2"
    assert outcomes(home)[-1] == ("refused", "support-v1")


@pytest.mark.parametrize("project", ["support", "nobody"])
def test_with_nothing_to_go_back_to_it_says_so(home: Home, project: str) -> None:
    with pytest.raises(UsageError, match=f"{project} has no previous deployment"):
        rollback(home, project, engine=None, registry=Registry(home), by="ann", reason="?")
    assert list(home.promotions.glob("*.json")) == []


def test_a_clock_that_was_set_back_turns_no_decisions_round(
    home: Home, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.promote import taken_back

    monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
    candidate, now = a_candidate(home, "one"), time.time_ns()
    run_promotion(home, engine, candidate)
    for earlier in (1, 2):  # hours that it is set back before each of these
        monkeypatch.setattr(time, "time_ns", lambda back=earlier: now - back * 3600 * 10**9)
        run_rollback(home, engine)
        if earlier == 1:
            assert "was rolled back by ann" in str(taken_back_of(home, candidate, taken_back))
            run_promotion(home, engine, candidate)
    commit(home)
    assert reconcile(home, Registry(home), engine) == []
    told = sorted(decisions(home), key=lambda one: one.at)
    assert [one.outcome for one in told] == ["promoted", "rolled_back"] * 2
    assert route_of(home).champion.name == told[-1].deployment == "support-v0"


def taken_back_of(home: Home, candidate: Deployment, asked: Callable[[Deployment], Any]) -> Any:
    commit(home)
    return asked(candidate)


# --- killed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_promotion_killed_at_any_step_is_put_in_line_at_the_next_start(
    home: Home, engine: ScriptedEngine, step: str
) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    candidate = a_candidate(home, "two")
    killed(step, lambda: run_promotion(home, engine, candidate))
    told = reconcile(home, Registry(home), engine)
    assert len(told) == 1 and "support-v2" in told[0]
    happened = step in HAPPENED
    assert consistent(home, engine) == ("support-v2" if happened else "support-v1")
    expected = ("promoted", "support-v2") if happened else ("abandoned", "support-v2")
    assert outcomes(home) == [("promoted", "support-v1"), expected]
    if not happened:
        assert engine.models() == ["support-v1"]
    # Again it finds nothing to do, with the engine or without.
    assert reconcile(home, Registry(home), engine) == []
    assert reconcile(home, Registry(home), None) == []
    # And the candidate can be promoted after all.
    run_promotion(home, engine, candidate)
    assert consistent(home, engine) == "support-v2"


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_promotion_that_is_run_again_goes_on_and_decides_once(
    home: Home, engine: ScriptedEngine, step: str
) -> None:
    candidate = a_candidate(home, "one")
    killed(step, lambda: run_promotion(home, engine, candidate))
    run_promotion(home, engine, candidate)
    assert consistent(home, engine) == "support-v1"
    assert outcomes(home) == [("promoted", "support-v1")]
    assert reconcile(home, Registry(home), engine) == []


@pytest.mark.parametrize("step", ["intent", "load", "routing", "alias", "decision"])
def test_a_rollback_killed_at_any_step_is_put_in_line(
    home: Home, engine: ScriptedEngine, step: str
) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    run_promotion(home, engine, a_candidate(home, "two"))
    killed(step, lambda: run_rollback(home, engine))
    reconcile(home, Registry(home), None)
    assert consistent(home, engine) == ("support-v1" if step in HAPPENED else "support-v2")
    assert engine.models() == ["support-v1", "support-v2"]
    assert reconcile(home, Registry(home), engine) == []


@pytest.mark.parametrize("step", ["load", "routing", "decision"])
def test_a_killed_rollback_that_is_run_again_is_not_undone(
    home: Home, engine: ScriptedEngine, step: str
) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    killed(step, lambda: run_rollback(home, engine))
    assert run_rollback(home, engine).version == 0
    assert consistent(home, engine) == "support-v0"


def test_a_refusal_killed_after_its_decision_is_not_decided_twice(
    home: Home, engine: ScriptedEngine
) -> None:
    candidate = a_candidate(home, "one")

    def refused() -> None:
        run_promotion(home, engine, candidate, verify=refuse)

    killed("decision", refused)
    reconcile(home, Registry(home), engine)
    assert outcomes(home) == [("refused", "support-v1")]
    assert consistent(home, engine) == "support-v0"


def test_killed_with_a_reconcile_that_is_killed_too(home: Home, engine: ScriptedEngine) -> None:
    candidate = a_candidate(home, "one")
    killed("routing", lambda: run_promotion(home, engine, candidate))
    for step in ("alias", "decision"):
        killed(step, lambda: reconcile(home, Registry(home), engine))
    reconcile(home, Registry(home), engine)
    assert consistent(home, engine) == "support-v1"
    assert outcomes(home) == [("promoted", "support-v1")]


# --- reconcile -----------------------------------------------------------------------------------


def test_a_home_that_is_in_line_is_left_alone(home: Home, engine: ScriptedEngine) -> None:
    assert reconcile(home, Registry(home), engine) == []
    run_promotion(home, engine, a_candidate(home, "one"))
    commit(home)
    a_candidate(home, "two")  # is being evaluated: its challenger alias stays
    assert reconcile(home, Registry(home), engine) == []
    assert Registry(home).aliases("support")["challenger"] == "2"


def test_an_empty_home_has_nothing_to_reconcile(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert reconcile(home, Registry(home), None) == []


def test_aliases_and_ledger_follow_a_routing_file_that_somebody_replaced(
    home: Home, engine: ScriptedEngine
) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    second = a_candidate(home, "two")
    commit(home)
    now = routing.read(home)
    route = msgspec.structs.replace(
        route_of(home), champion=second, previous=route_of(home).champion
    )
    routing.replace(home, msgspec.structs.replace(now, projects={"support": route}))
    told = reconcile(home, Registry(home), engine)
    assert len(told) == 2
    assert Registry(home).aliases("support") == {
        "champion": "2",
        "previous": "1",
        "challenger": "2",
    }
    assert outcomes(home) == [("promoted", "support-v1"), ("reconciled", "support-v2")]
    assert reconcile(home, Registry(home), engine) == []


def test_a_promotion_that_is_under_way_is_left_to_it(home: Home, engine: ScriptedEngine) -> None:
    with held(home.locks / "promotion-support.lock", wait_s=1, busy="?"):
        [told] = reconcile(home, Registry(home), engine)
        assert told == "support: a promotion is under way, left to it"


def test_a_registry_that_is_broken_stops_neither_a_rollback_nor_a_start(
    home: Home, engine: ScriptedEngine
) -> None:
    run_promotion(home, engine, a_candidate(home, "one"))
    whole = (home.mlflow / "mlflow.db").read_bytes()
    (home.mlflow / "mlflow.db").write_bytes(b"no database" * 1000)
    with pytest.raises(FlywheelError, match=r"support-v0 serves now, but .*not a database.*again"):
        run_rollback(home, engine)
    assert route_of(home).champion.version == 0
    [told] = reconcile(home, Registry(home), engine)
    assert "could not be put in line" in told
    (home.mlflow / "mlflow.db").write_bytes(whole)
    assert len(reconcile(home, Registry(home), engine)) == 1
    assert consistent(home, engine) == "support-v0"


def test_reconciling_in_a_process_of_its_own(home: Home, engine: ScriptedEngine) -> None:
    candidate = a_candidate(home, "one")
    killed("routing", lambda: run_promotion(home, engine, candidate))
    command = [sys.executable, "-m", "serving.reconcile", str(home.root)]
    root = Path(__file__).resolve().parents[2]
    for expected in (1, 0):
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        assert (len(done.stdout.splitlines()), done.stderr) == (expected, "")
    assert consistent(home, engine) == "support-v1"


def test_an_intent_that_cannot_be_read_is_set_aside(home: Home, engine: ScriptedEngine) -> None:
    home.promotions.mkdir(parents=True)
    (home.promotions / "support.json").write_bytes(b"{")
    assert reconcile(home, Registry(home), engine) == []
    assert [path.name for path in home.promotions.iterdir()] == ["support.broken"]
    run_promotion(home, engine, a_candidate(home, "one"))
    assert consistent(home, engine) == "support-v1"


def test_a_project_that_is_held_is_busy(
    home: Home, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.reconcile._WAIT_S", 0.05)
    with (
        held(home.locks / "promotion-support.lock", wait_s=1, busy="?"),
        pytest.raises(Busy, match="promotion or rollback of support runs"),
    ):
        run_rollback(home, engine)


def test_an_intent_that_is_a_folder_is_set_aside(home: Home) -> None:
    (home.promotions / "support.json").mkdir(parents=True)
    assert read_intent(home, "support") is None and read_intent(home, "support") is None
    assert (home.promotions / "support.broken").is_dir()
