"""The gateway with a challenger beside the champion: who answers, and what is logged of it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from flywheel.lineage import Deployment
from flywheel.records import ModelCall
from serving import routing
from serving.choosing import place_of
from tests.serving.running import Running, body, running
from tests.serving.scripted_upstream import Upstream


@pytest.fixture
def gateway(tmp_path: Path, engine: Upstream) -> Iterator[Running]:
    with running(tmp_path, engine.url) as up:
        challenge(up, 0.5)
        yield up


def challenge(gateway: Running, share: float, version: int = 3) -> None:
    now = routing.read(gateway.home)
    other = Deployment(
        name=f"support-v{version}",
        project="support",
        version=version,
        base_model="base",
        adapter=f"runs/{version}/adapter",
    )
    route = msgspec.structs.replace(now.projects["support"], challenger=other, share=share)
    routing.replace(gateway.home, routing.Routing(version=now.version, projects={"support": route}))


def post(gateway: Running, content: bytes, **headers: str) -> httpx.Response:
    url = gateway.url + "/v1/chat/completions"
    return httpx.post(url, content=content, headers={"content-type": "application/json", **headers})


def calls(gateway: Running) -> list[ModelCall]:
    return [one.spans[0].call for one in gateway.traces() if one.spans[0].call]


def conversation(challenged: bool, version: int = 3, share: float = 0.5) -> str:
    """One that goes to the challenger, or one that does not."""
    names = (f"conversation-{k}" for k in range(1000))
    return next(
        one for one in names if (place_of(one, f"support-v{version}") < share) == challenged
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_answered_by_its_deployment_and_logged_so(
    gateway: Running, engine: Upstream, stream: bool
) -> None:
    for name, served in ((conversation(True), "support-v3"), (conversation(False), "support-v0")):
        for _ in range(3):
            answer = post(gateway, body(stream=stream), **{"x-conversation-id": name})
            assert answer.headers["x-flywheel-deployment"] == served
            assert served in answer.text
    logged = [(call.deployment, call.response_model, call.routing_probability)
              for call in calls(gateway)]  # fmt: skip
    assert (
        logged == [("support-v3", "support-v3", 0.5)] * 3 + [("support-v0", "support-v0", 0.5)] * 3
    )
    assert [one["model"] for one in engine.requests] == ["support-v3"] * 3 + ["base"] * 3


def test_without_a_conversation_a_user_is_kept_and_nobody_is_drawn_for(gateway: Running) -> None:
    for _ in range(4):
        post(gateway, body(user=conversation(True)))
    assert {call.deployment for call in calls(gateway)} == {"support-v3"}
    for _ in range(40):
        post(gateway, body())
    drawn = [call.deployment for call in calls(gateway)[4:]]
    assert 5 < drawn.count("support-v3") < 35


def test_who_names_a_deployment_gets_that_one(gateway: Running) -> None:
    for model, name in (("support-v0", conversation(True)), ("support-v3", conversation(False))):
        answer = post(gateway, body(model=model), **{"x-conversation-id": name})
        assert answer.json()["model"] == model
    assert [(one.deployment, one.routing_probability) for one in calls(gateway)] == [
        ("support-v0", 1.0), ("support-v3", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_a_challenger_that_the_engine_has_not_loaded_costs_nobody_an_answer(
    gateway: Running, engine: Upstream, stream: bool
) -> None:
    engine.not_loaded.add("support-v3")
    name = {"x-conversation-id": conversation(True)}
    answer = post(gateway, body(stream=stream), **name)
    assert answer.status_code == 200
    assert (
        answer.headers["x-flywheel-deployment"] == "support-v0" and "support-v3" not in answer.text
    )
    (trace,) = gateway.traces()
    call = trace.spans[0].call
    assert call and (call.deployment, call.routing_probability) == ("support-v0", 1.0)
    assert trace.spans[0].attributes["challenger_absent"] == "support-v3"
    assert gateway.gateway.recording.counts["challenger_absent"] == 1
    assert post(gateway, body(model="support-v3"), **name).status_code == 503


def test_a_share_that_ends_takes_effect_with_the_next_request(gateway: Running) -> None:
    name = {"x-conversation-id": conversation(True)}
    assert post(gateway, body(), **name).json()["model"] == "support-v3"
    challenge(gateway, 0.0)
    assert post(gateway, body(), **name).json()["model"] == "support-v0"
    assert calls(gateway)[-1].routing_probability == 1.0


def test_what_serves_is_told_with_its_canary(gateway: Running) -> None:
    health = httpx.get(gateway.url + "/health").json()
    assert health["deployments"] == {"support": "support-v0"}
    assert health["canaries"] == {"support": {"deployment": "support-v3", "share": 0.5}}
