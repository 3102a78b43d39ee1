"""A copy of a request is asked of another deployment: nobody waits for it, nobody sees it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.records import Trace
from serving import key_file, routing, shadow
from serving.keys import Keys
from serving.observing import Seen
from storage.committer import commit
from storage.usage import usage
from tests.serving.running import Running, body, running
from tests.serving.scripted_upstream import Upstream


@pytest.fixture
def gateway(tmp_path: Path, engine: Upstream) -> Iterator[Running]:
    with running(tmp_path, engine.url) as up:
        let_shadow(up)
        yield up


def let_shadow(up: Running) -> None:
    """`support-v3` gets a copy of each request."""
    now = routing.read(up.home)
    other = Deployment(
        name="support-v3", project="support", version=3, base_model="base", adapter="a"
    )
    route = msgspec.structs.replace(now.projects["support"], shadow=other, shadow_share=1.0)
    routing.replace(up.home, msgspec.structs.replace(now, projects={"support": route}))


def post(gateway: Running, **more: object) -> httpx.Response:
    return httpx.post(gateway.url + "/v1/chat/completions", content=body(**more), timeout=30)


def until(there: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def shadows(gateway: Running) -> list[Trace]:
    return [trace for trace in gateway.traces() if trace.source == "shadow"]


@pytest.mark.parametrize("stream", [False, True])
def test_its_answer_is_a_trace_of_its_own_that_names_what_users_saw(
    gateway: Running, engine: Upstream, stream: bool
) -> None:
    seen: list[Seen] = []
    gateway.gateway.observers.add(seen.append)
    answer = post(gateway, stream=stream)
    assert answer.headers["x-flywheel-deployment"] == "support-v0"
    until(lambda: shadows(gateway))
    [copied], [shown] = (
        shadows(gateway),
        [trace for trace in gateway.traces() if trace.source == "gateway"],
    )
    of = copied.spans[0].attributes["shadow_of"]
    assert of == {"trace": shown.id, "span": shown.spans[0].id} and copied.id != shown.id
    call, original = copied.spans[0].call, shown.spans[0].call
    assert call and original and call.deployment == "support-v3"
    assert call.input == original.input and call.routing_probability is None
    assert call.choices[0].tokens is not None and copied.origin == "production"
    [asked] = [one for one in engine.requests if one["model"] == "support-v3"]
    assert not asked.get("stream")
    until(lambda: len(seen) == 2)
    assert {(one.deployment, one.shadow) for one in seen} == {
        ("support-v0", False),
        ("support-v3", True),
    }


def test_its_tokens_are_on_no_keys_account_in_metrics_and_in_usage(
    tmp_path: Path, engine: Upstream
) -> None:
    home = Home(tmp_path)
    secret = key_file.add(home, key_file.Key(name="web", scopes=frozenset({"infer"})))
    seen: list[Seen] = []
    with running(tmp_path, engine.url, keys=Keys(home=home)) as up:
        let_shadow(up)
        up.gateway.observers.add(seen.append)
        headers = {"authorization": f"Bearer {secret}"}
        asked = httpx.post(up.url + "/v1/chat/completions", content=body(), headers=headers)
        assert asked.status_code == 200
        until(lambda: len(seen) == 2)
    assert {(one.shadow, one.caller) for one in seen} == {(False, "web"), (True, "")}
    commit(home)
    accounts = {one.group["key"]: one.input_tokens for one in usage(home, ["key"])}
    assert set(accounts) == {"web", None}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("completions", {"prompt": "it is"}),
        ("responses", {"input": "where is it?"}),
        ("messages", {"messages": [{"role": "user", "content": "where?"}], "max_tokens": 9}),
    ],
)
def test_a_stream_of_any_protocol_is_copied_as_a_whole_request(
    gateway: Running, path: str, asked: dict[str, object]
) -> None:
    said = {"model": "support", "stream": True, **asked}
    answer = httpx.post(f"{gateway.url}/v1/{path}", json=said, timeout=30)
    assert answer.status_code == 200 and "shipped" in answer.text
    until(lambda: shadows(gateway))
    [copied] = shadows(gateway)
    call = copied.spans[0].call
    assert copied.spans[0].error is None
    assert call and call.choices[0].message.text == "It is shipped."


def test_one_that_fails_or_hangs_costs_the_caller_nothing(
    gateway: Running, engine: Upstream
) -> None:
    engine.broken_for = {"support-v3"}
    assert post(gateway).status_code == 200
    until(lambda: shadows(gateway))
    assert "boom" in (shadows(gateway)[0].spans[0].error or "")


def test_what_does_not_fit_is_dropped_and_counted(
    gateway: Running, engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "_MOST_BYTES", 10)
    assert post(gateway).status_code == 200
    assert gateway.gateway.recording.counts["shadow_dropped"] == 1 and not shadows(gateway)


def test_a_fault_of_ours_costs_no_other_request_its_copy(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(data: bytes) -> None:
        raise ValueError(data)

    counts = gateway.gateway.recording.counts
    with monkeypatch.context() as patched:
        patched.setattr(shadow, "understand", faulty)
        for _ in range(6):
            post(gateway)
        until(lambda: counts["shadow_dropped"] == 6)
    post(gateway)
    until(lambda: shadows(gateway))


def test_a_share_takes_whole_conversations(gateway: Running) -> None:
    now = routing.read(gateway.home)
    route = msgspec.structs.replace(now.projects["support"], shadow_share=0.5)
    routing.replace(gateway.home, msgspec.structs.replace(now, projects={"support": route}))
    for k in range(12):
        for _ in range(2):
            httpx.post(
                gateway.url + "/v1/chat/completions",
                content=body(),
                headers={"x-conversation-id": f"conversation {k}"},
            )
    counts = gateway.gateway.recording.counts
    until(lambda: counts["shadowed"] == len(shadows(gateway)) and counts["shadowed"] > 0)
    assert 0 < len(shadows(gateway)) < 24 and len(shadows(gateway)) % 2 == 0
