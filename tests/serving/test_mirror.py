"""A shadow is set behind the serving gate, and ended; nobody is answered by it."""

from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import Refused, UsageError
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving import routing
from serving.mirror import end_shadow, set_shadow
from serving.protocol import with_champion
from serving.routing import ProjectRoute, Routing, base_deployment
from storage.committer import commit
from storage.queries import records
from tests.serving.scripted_adapters import ScriptedEngine, an_adapter

CANDIDATE = Deployment(
    name="support-v2", project="support", version=2, base_model="tiny", adapter="runs/two/adapter"
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    an_adapter(home, "two")
    champion = base_deployment("support", "tiny")
    route = ProjectRoute(project="support", base_model="tiny", champion=champion)
    routing.replace(home, Routing(projects={"support": route}))
    return home


@pytest.fixture
def engine(home: Home) -> ScriptedEngine:
    return ScriptedEngine(home.root / "engine")


def shadow(home: Home, engine: ScriptedEngine, share: float = 0.1, **more: Any) -> ProjectRoute:
    given: dict[str, Any] = {"verify": lambda: {"largest": 0.0}, "by": "ann", "reason": "unseen"}
    return set_shadow(home, CANDIDATE, share, engine=engine, **(given | more))


def told(home: Home) -> list[tuple[str, str, Any]]:
    commit(home)
    found = records(home, "decision", project="support")
    return [(one.outcome, one.gate, one.evidence.get("shadow")) for one in found]


def test_it_is_set_once_changed_and_ended(home: Home, engine: ScriptedEngine) -> None:
    shadow(home, engine)
    route = shadow(home, engine)
    assert (route.shadow, route.shadow_share, route.challenger) == (CANDIDATE, 0.1, None)
    assert engine.models() == ["support-v2"]
    shadow(home, engine, 1.0)
    with pytest.raises(UsageError, match="nothing to end"):
        end_shadow(home, "support", "7", engine=engine, by="ann", reason="")
    route = end_shadow(home, "support", "2", engine=engine, by="ann", reason="")
    assert (route.shadow, route.shadow_share, engine.models()) == (None, 0.0, [])
    assert told(home) == [("routed", "shadow", share) for share in (0.1, 1.0, 0.0)]


def test_the_serving_gate_stands_before_it(home: Home, engine: ScriptedEngine) -> None:
    def refuse() -> dict[str, Any]:
        raise Refused("logprobs differ by 0.3")

    with pytest.raises(Refused, match="is asked nothing: logprobs differ"):
        shadow(home, engine, verify=refuse)
    assert routing.read(home).projects["support"].shadow is None and engine.models() == []
    assert told(home) == [("refused", "serving", None)]


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1, float("nan")])
def test_what_is_no_share_is_told(home: Home, engine: ScriptedEngine, share: float) -> None:
    with pytest.raises(UsageError, match="above 0 and at most 1"):
        shadow(home, engine, share)


def test_who_becomes_champion_is_asked_no_copies(home: Home, engine: ScriptedEngine) -> None:
    route = with_champion(shadow(home, engine), CANDIDATE)
    assert (route.champion, route.shadow, route.shadow_share) == (CANDIDATE, None, 0.0)
