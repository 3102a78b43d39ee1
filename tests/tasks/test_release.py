"""A release is looked at after each grading: what its reward says is done, once."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel.home import Home
from flywheel.lineage import Decision, Deployment
from flywheel.records import Grade
from serving import routing
from serving.release import Paired, kept_first, standing
from serving.routing import ProjectRoute, Routing, base_deployment, external_deployment
from storage.committer import commit
from storage.inbox import Inbox
from storage.queries import records
from storage.released import Mirrored
from storage.released import mirrored as pairs_of
from tasks.promote import promote_candidate, taken_back
from tasks.turns import Turn
from tests.storage.test_released import drawn

TOML = """
name = "support"
[model]
base = "tiny"
[environment]
path = "environment.py:Support"
[release]
min_requests = 30
max_requests = 400
max_hours = 1e9  # the epoch is long ago
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "flywheel.toml").write_text(TOML)
    challenger = Deployment(
        name="support-v2", project="support", version=2, base_model="tiny", adapter="runs/2/adapter"
    )
    route = ProjectRoute(
        project="support", base_model="tiny", challenger=challenger, share=0.2, since=50,
        champion=Deployment(name="support-v1", project="support", version=1, base_model="tiny"),
        previous=base_deployment("support", "tiny"),
    )  # fmt: skip
    routing.replace(Home(tmp_path / "home"), Routing(projects={"support": route}))
    return tmp_path


@pytest.fixture
def home(project: Path) -> Home:
    return Home(project / "home")


def answered(home: Home, count: int, champion: float, challenger: float, seed: int = 1) -> None:
    """Graded traffic, of which a fifth went to the challenger."""
    draw, made = random.Random(seed), list[Any]()
    for number in range(count):
        arm = draw.random() < 0.2
        name = "support-v2" if arm else "support-v1"
        trace = drawn(f"{seed}-{number}", name, 0.2 if arm else 0.8, at=100 + number)
        value = float(draw.random() < (challenger if arm else champion))
        made += [trace, Grade(trace_id=trace.id, reward="right", value=value, at=1)]
    Inbox(home).append(made)
    commit(home)


def look(project: Path) -> dict[str, Any]:
    from tasks.release import look as task

    found = task.fn(str(project))
    assert found is not None
    return found


def decisions(home: Home) -> list[Decision]:
    commit(home)
    return records(home, "decision", project="support")


@pytest.mark.slow
def test_one_that_is_worse_is_rolled_back_with_its_evidence(project: Path, home: Home) -> None:
    answered(home, 700, 0.9, 0.4)
    found = look(project)
    assert (found["says"], found["decided"]) == ("roll back", "rolled_back")
    route = routing.read(home).projects["support"]
    assert (route.champion.version, route.challenger, route.since) == (1, None, None)
    (decision,) = decisions(home)
    assert (decision.outcome, decision.gate, decision.by) == (
        "rolled_back", "canary", "reward test",
    )  # fmt: skip
    assert (decision.deployment, decision.replaced) == ("support-v1", "support-v2")
    told = taken_back(
        Deployment(name="support-v2", project="support", version=2, base_model="tiny")
    )
    assert told and "taken out of its canary" in told and "flywheel rollback" not in told
    stood = decision.evidence["release"]
    assert stood["high"] < 0 and stood["units"][1] > 100 and sum(stood["units"]) == 700
    from tasks.release import look as again

    assert again.fn(str(project)) is None


@pytest.mark.slow
def test_one_that_is_alike_goes_on_and_ends_for_want_of_evidence(project: Path, home: Home) -> None:
    answered(home, 600, 0.7, 0.7)
    found = look(project)
    assert (found["says"], found["decided"]) == ("go on", None)
    assert routing.canary_of(home, "support") is not None and decisions(home) == []
    answered(home, 1700, 0.7, 0.7, seed=2)
    assert look(project)["decided"] == "inconclusive"
    (decision,) = decisions(home)
    assert (decision.outcome, decision.deployment) == ("inconclusive", "support-v2")
    assert decision.replaced is None and routing.canary_of(home, "support") is None


def test_one_that_is_better_is_to_be_promoted_and_never_before_its_minimum(home: Home) -> None:
    from flywheel.serving_section import ReleaseSection

    answered(home, 700, 0.3, 0.9)
    for least, says in ((30, "promote"), (1000, "go on")):
        found = standing(home, "support", ReleaseSection(min_requests=least, max_hours=1e9))
        assert found is not None and found[0].says == says and found[0].low > 0


def test_one_whose_time_is_over_ends_for_want_of_evidence(home: Home) -> None:
    from flywheel.serving_section import ReleaseSection

    answered(home, 50, 0.7, 0.7)
    for most, says in ((1e9, "go on"), (1.0, "not enough evidence")):
        found = standing(home, "support", ReleaseSection(max_hours=most))
        assert found is not None and found[0].says == says


@pytest.mark.slow
def test_where_a_person_promotes_it_is_told_once_and_goes_on_meanwhile(
    project: Path, home: Home
) -> None:
    (project / "flywheel.toml").write_text(TOML + '[gate]\npromotion = "asked"\n')
    for batch in range(2):
        answered(home, 700, 0.3, 0.9, seed=batch)
        assert look(project)["decided"] == "waiting"
    (decision,) = decisions(home)
    assert (decision.outcome, decision.deployment) == ("waiting", "support-v2")
    assert "promote" in decision.reason and decision.evidence["release"]["low"] > 0
    assert routing.canary_of(home, "support") is not None


def test_a_turns_candidate_waits_for_a_canary_that_was_asked_meanwhile(
    project: Path, home: Home
) -> None:
    (project / "environment.py").write_text("")
    ours = Deployment(name="support-v3", project="support", version=3, base_model="tiny")
    champion = routing.read(home).projects["support"].champion
    turn = Turn(
        run_id="run", project="support", folder=str(project), start=champion, configuration="c",
        sequence=1, snapshot="s",
    )  # fmt: skip
    evaluation: Any = {
        "reason": "better", "evaluation": None, "challenger": msgspec.to_builtins(ours),
    }  # fmt: skip
    step: Any = promote_candidate
    said = step.fn(turn, {}, evaluation)
    assert said["waiting"] and not said["passed"] and "support-v2 is not over" in said["reason"]
    assert "flywheel release --version 3 --canary 10%" in said["reason"]
    (decision,) = decisions(home)
    assert (decision.outcome, decision.deployment) == ("waiting", "support-v3")
    route = routing.read(home).projects["support"]
    assert (route.champion, route.challenger and route.challenger.version) == (champion, 2)


def test_what_was_counted_keeps_its_place_whatever_is_graded_anew(
    project: Path, home: Home
) -> None:
    answered(home, 100, 0.5, 0.5)
    first = look(project)
    trace = drawn("late", "support-v2", 0.2, at=60)
    later = [Grade(trace_id=trace.id, reward="right", value=1.0, at=2)]
    Inbox(home).append([trace, *later])
    anew = [
        Grade(trace_id=drawn(f"1-{number}", "support-v2", 0.2).id, reward="right", value=0.0, at=9)
        for number in range(100)
    ]
    Inbox(home).append(anew)
    commit(home)
    second = look(project)
    assert second["means"][0] == first["means"][0]
    assert sum(second["units"]) == 101 and second["low"] >= first["low"]


def mirrored(
    home: Home, count: int, served: float, rate: float, *, shadow: str = "support-v3"
) -> None:
    """Requests that users saw answered, and the shadow's answers to copies of them."""
    draw, made = random.Random(5), list[Any]()
    for number in range(count):
        seen = drawn(f"seen-{number}", "support-v1", 1.0, at=100 + number)
        of = {"trace": seen.id, "span": seen.spans[0].id}
        copy = drawn(f"copy-{number}", shadow, 1.0, at=100 + number, shadow_of=of)
        for trace, good in ((seen, served), (copy, rate)):
            value = float(draw.random() < good)
            made += [trace, Grade(trace_id=trace.id, reward="right", value=value, at=1)]
    Inbox(home).append(made)
    commit(home)


@pytest.mark.parametrize(
    ("rate", "says", "decided"), [(0.2, "take out", "taken out"), (0.8, "canary", None)]
)
def test_a_shadow_that_is_surely_worse_is_asked_no_more(
    project: Path, home: Home, rate: float, says: str, decided: str | None
) -> None:
    now = routing.read(home)
    route = msgspec.structs.replace(
        now.projects["support"], challenger=None, share=0.0, since=None, shadow_share=0.5,
        shadow=Deployment(
            name="support-v3", project="support", version=3, base_model="tiny", adapter="runs/3"
        ),
    )  # fmt: skip
    routing.replace(home, msgspec.structs.replace(now, projects={"support": route}))
    mirrored(home, 120, 0.8, rate)
    found = look(project)
    assert (found["says"], found["decided"], found["pairs"]) == (says, decided, 120)
    shadow = routing.read(home).projects["support"].shadow
    assert (shadow is None) == (decided is not None)
    assert [one.outcome for one in decisions(home)] == (["routed"] if decided else [])
    deployment = Deployment(name="support-v3", project="support", version=3, base_model="tiny")
    assert bool(taken_back(deployment)) == (decided is not None), "a turn does not bring it back"


def test_a_providers_shadow_is_ended_whatever_it_is_called_and_never_canaried(
    project: Path, home: Home
) -> None:
    now = routing.read(home)
    route = msgspec.structs.replace(
        now.projects["support"], challenger=None, share=0.0, since=None, shadow_share=0.5,
        shadow=external_deployment("support", "vendor", "tiny"),
    )  # fmt: skip
    routing.replace(home, msgspec.structs.replace(now, projects={"support": route}))
    mirrored(home, 120, 0.8, 0.2, shadow="support-vendor")
    assert look(project)["decided"] == "taken out"
    assert routing.read(home).projects["support"].shadow is None


def test_pairs_of_a_shadow_keep_their_place_and_are_of_the_champion(home: Home) -> None:
    found = [Mirrored(unit=str(number), shadow=1.0, served=0.0) for number in range(3)]
    begun, path = Paired(champion="support-v1", shadow="support-v3"), home.root / "kept.json"
    assert kept_first(path, begun, found[1:], keep=True) == (*found[1:],)
    anew = [msgspec.structs.replace(one, shadow=0.0) for one in found]
    assert kept_first(path, begun, anew, keep=False) == (*found[1:], anew[0])
    other = Paired(champion="support-v2", shadow="support-v3")
    assert kept_first(path, other, anew, keep=False) == (*anew,)
    mirrored(home, 2, 1.0, 0.0)
    assert len(pairs_of(home, "support", "support-v1", "support-v3")) == 2
    assert pairs_of(home, "support", "support-v2", "support-v3") == ()
