"""A provider's model is the champion: it is sampled, learnt from, replaced, and rolled back to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import Refused
from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.project import load_project
from flywheel.records import model_spans
from flywheel.settings import Settings
from serving import routing
from serving.routing import external_deployment
from storage.queries import traces
from tasks.candidates import candidates
from tasks.sample import sample_chunk, teacher_of
from tasks.starting import start_of, trainable
from tasks.turns import Turn, champion_of
from tests.serving.scripted_adapters import ScriptedEngine, a_candidate
from tests.serving.scripted_messages import Vendor, vendor
from tests.tasks.answering import answering
from tests.tasks.test_teacher import BASE, ENVIRONMENT, posed, upper

CHAMPION = external_deployment("desk", "vendor", str(BASE))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VENDORS_KEY", "it-is-secret")
    place = Settings().at()
    place.root.mkdir()
    return place


@pytest.fixture
def claude() -> Iterator[Vendor]:
    with vendor() as scripted:
        yield scripted


def turn(folder: Path, url: str, protocol: str, algorithm: str) -> Turn:
    (folder / "environment.py").write_text(ENVIRONMENT)
    (folder / "flywheel.toml").write_text(
        'name = "desk"\nmodel.base = "base"\nenvironment.path = "environment.py:Desk"\n'
        f'serving.first = "vendor"\ntrain.algorithm = "{algorithm}"\n'
        f'[providers.vendor]\nurl = "{url}"\nmodel = "wise"\nprotocol = "{protocol}"\n'
        'key_env = "VENDORS_KEY"\n'
    )
    return Turn(
        run_id="run",
        project="desk",
        folder=str(folder),
        start=CHAMPION,
        configuration="c",
        sequence=1 << 40,
        snapshot="s",
    )


def test_until_a_promotion_the_provider_is_the_champion_and_a_run_starts_from_the_base(
    tmp_path: Path, home: Home
) -> None:
    turn(tmp_path, "http://127.0.0.1:9/v1", "openai", "recorded")
    found = champion_of(load_project(tmp_path))
    assert (found.name, found.kind, found.provider) == ("desk-vendor", "external", "vendor")
    assert start_of(CHAMPION) == (BASE, None)
    with pytest.raises(Refused, match='algorithm = "teacher" learns from its words'):
        trainable(load_project(tmp_path), CHAMPION)
    turn(tmp_path, "http://127.0.0.1:9/v1", "openai", "teacher")
    trainable(load_project(tmp_path), CHAMPION)


def test_its_right_answers_become_what_is_learnt(tmp_path: Path, home: Home) -> None:
    problems, step = posed(home), sample_chunk
    sample: Any = step
    with answering(upper) as model:
        asked = turn(tmp_path, model.url + "/v1", "openai", "teacher")
        sampled = sample.fn(asked, 0, problems)
        requests = model.requests
    assert sampled["reward"] == sampled["rollouts"] * 2 / 3
    assert {one["model"] for one in requests} == {"wise"}
    assert not {"flywheel_gang", "return_token_ids", "logprobs"} & requests[0].keys()
    rows = list(candidates(asked))
    assert rows and {row.tokens for row in rows} == {None}
    assert teacher_of(load_project(tmp_path), CHAMPION) is None


def test_one_that_speaks_messages_is_asked_as_any(
    tmp_path: Path, home: Home, claude: Vendor
) -> None:
    asked = turn(tmp_path, claude.url, "anthropic", "teacher")
    sample: Any = sample_chunk
    sampled = sample.fn(asked, 0, posed(home))
    assert sampled["rollouts"] == sampled["graded"] > 0
    assert claude.headers[0]["x-api-key"] == "it-is-secret"
    kept = [one for some in traces(home, project="desk") for one in some]
    calls = [span.call for one in kept for span in model_spans(one) if span.call]
    assert {call.deployment for call in calls} == {"desk-vendor"}
    assert {call.choices[0].message.text for call in calls} == {"It is shipped."}
    assert {call.usage.input_tokens for call in calls} == {107}


@pytest.mark.slow
def test_it_is_replaced_by_a_promotion_and_rolled_back_to(tmp_path: Path) -> None:
    from serving.promotion import promote, rollback
    from serving.registry import Registry

    home = Home(tmp_path / "home")
    home.root.mkdir()
    first = external_deployment("support", "vendor", "tiny")
    route = routing.ProjectRoute(project="support", base_model="tiny", champion=first)
    routing.replace(home, routing.Routing(projects={"support": route}))
    engine, registry = ScriptedEngine(tmp_path / "engine"), Registry(home)
    ours: Deployment = a_candidate(home, "r1")
    why: Any = {"engine": engine, "by": "ann", "reason": "better"}
    promote(home, ours, registry=registry, verify=dict, against=first.name, **why)
    now = routing.read(home).projects["support"]
    assert (now.champion.name, now.previous) == (ours.name, first)
    assert engine.models() == [ours.name]
    assert rollback(home, "support", registry=registry, **why) == first
    assert routing.read(home).projects["support"].champion == first
    assert engine.models() == [ours.name], "it stays, so that it can come back at once"
