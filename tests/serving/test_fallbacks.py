"""Who answers where the chosen deployment does not, and what the record says of it."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from flywheel.lineage import Deployment
from serving import routing
from serving.observing import Seen
from tests.serving.running import Running, body, running, terms
from tests.serving.scripted_upstream import Upstream, upstream


@pytest.fixture
def backup() -> Iterator[Upstream]:
    with upstream() as scripted:
        yield scripted


@pytest.fixture
def gateway(tmp_path: Path, engine: Upstream, backup: Upstream) -> Iterator[Running]:
    with with_fallback(tmp_path, engine.url, backup) as up:
        yield up


def with_fallback(folder: Path, engine: str, backup: Upstream, **serving: Any) -> Any:
    known = terms(
        serving={"fallbacks": ["previous", "backup"], **serving},
        providers={"backup": {"url": backup.url + "/v1", "model": "gpt-9"}},
    )
    return running(folder, engine, terms=known)


def post(gateway: Running, text: str = "where is my order?", **more: Any) -> httpx.Response:
    return httpx.post(gateway.url + "/v1/chat/completions", content=body(text, **more), timeout=30)


def seen_by(gateway: Running) -> list[Seen]:
    seen: list[Seen] = []
    gateway.gateway.observers.add(seen.append)
    return seen


def until(there: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_is_answered_for_and_the_record_says_so(
    gateway: Running, engine: Upstream, stream: bool
) -> None:
    seen = seen_by(gateway)
    engine.broken_chat = True
    answer = post(gateway, stream=stream)
    assert answer.status_code == 200 and "shipped" in answer.text.replace('"}', "")
    assert answer.headers["x-flywheel-deployment"] == "support-backup"
    span = gateway.last()
    assert span.call and span.call.deployment == "support-backup"
    assert span.call.routing_probability is None and span.error is None
    [failed] = span.attributes["failed"]
    assert failed["deployment"] == "support-v0" and "boom" in failed["error"]
    assert [(one.deployment, one.end) for one in seen] == [
        ("support-v0", "fell_back"),
        ("support-backup", "answered"),
    ]


def test_an_engine_that_cannot_be_reached_or_cuts_is_answered_for(
    tmp_path: Path, engine: Upstream, backup: Upstream
) -> None:
    with with_fallback(tmp_path / "away", closed_port(), backup) as away:
        assert post(away).headers["x-flywheel-deployment"] == "support-backup"
        away.gateway.engine.phase = "restarting"
        assert post(away).headers["x-flywheel-deployment"] == "support-backup"
    with with_fallback(tmp_path / "half", engine.url, backup) as gateway:
        engine.error_first = True
        said = post(gateway, stream=True)
        assert said.headers["x-flywheel-deployment"] == "support-backup"
        assert "out of memory" not in said.text


def test_no_first_byte_in_time_asks_the_next_and_a_last_one_is_waited_for(
    tmp_path: Path, engine: Upstream, backup: Upstream
) -> None:
    engine.delay = 30.0
    backup.delay = 0.3
    with with_fallback(tmp_path, engine.url, backup, fallback_after_s=0.1) as gateway:
        assert post(gateway).headers["x-flywheel-deployment"] == "support-backup"
        span = gateway.last()
        assert span.attributes["failed"][0]["code"] == "engine_timeout"


def test_what_the_client_asked_wrongly_is_told_it_and_nobody_else_is_asked(
    gateway: Running, backup: Upstream
) -> None:
    assert post(gateway, "bad").status_code == 400
    assert not backup.requests


def test_a_client_that_names_a_deployment_gets_that_one_or_its_error(
    gateway: Running, engine: Upstream, backup: Upstream
) -> None:
    engine.broken_chat = True
    answer = httpx.post(
        gateway.url + "/v1/chat/completions",
        json={"model": "support-v0", "messages": [{"role": "user", "content": "hello"}]},
    )
    assert answer.status_code == 502 and not backup.requests


def test_a_challenger_that_fails_is_the_champions_to_answer_for(
    gateway: Running, engine: Upstream, backup: Upstream
) -> None:
    now = routing.read(gateway.home)
    other = Deployment(
        name="support-v3", project="support", version=3, base_model="base", adapter="a"
    )
    route = msgspec.structs.replace(now.projects["support"], challenger=other, share=0.999)
    routing.replace(gateway.home, msgspec.structs.replace(now, projects={"support": route}))
    engine.broken_for = {"support-v3"}
    assert post(gateway).headers["x-flywheel-deployment"] == "support-v0"
    assert not backup.requests


def test_where_all_fail_the_client_hears_of_the_one_that_was_chosen(
    gateway: Running, engine: Upstream, backup: Upstream
) -> None:
    seen = seen_by(gateway)
    engine.broken_chat = True
    backup.delay, backup.broken_chat = 0.0, True
    answer = post(gateway)
    assert answer.status_code == 502 and "the engine failed" in answer.text
    span = gateway.last()
    assert [one["deployment"] for one in span.attributes["failed"]] == [
        "support-v0",
        "support-backup",
    ]
    assert sorted((one.deployment, one.end) for one in seen) == [
        ("support-backup", "failed"),
        ("support-v0", "failed"),
    ]


def test_an_open_circuit_spares_the_engine_and_a_probe_closes_it(
    gateway: Running, engine: Upstream
) -> None:
    engine.broken_chat = True
    for _ in range(5):
        post(gateway)
    asked = len(engine.requests)
    assert post(gateway).headers["x-flywheel-deployment"] == "support-backup"
    assert len(engine.requests) == asked
    span = gateway.last()
    assert span.attributes["circuit_open"] == "support-v0"
    assert span.call and span.call.routing_probability is None
    engine.broken_chat = False
    gateway.gateway.backends.breakers.of("support-v0")._until = 0.0
    assert post(gateway).headers["x-flywheel-deployment"] == "support-v0"
    assert not gateway.gateway.backends.breakers.open()


def test_who_hangs_up_says_nothing_against_the_engine(gateway: Running, engine: Upstream) -> None:
    engine.delay = 30.0
    for _ in range(6):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(gateway.url + "/v1/chat/completions", content=body(), timeout=0.2)
    engine.delay = 0.0
    assert post(gateway).headers["x-flywheel-deployment"] == "support-v0"


def test_who_hangs_up_on_the_second_does_not_hide_that_the_first_failed(
    gateway: Running, engine: Upstream, backup: Upstream
) -> None:
    seen = seen_by(gateway)
    engine.broken_chat, backup.delay = True, 30.0
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(gateway.url + "/v1/chat/completions", content=body(), timeout=0.5)
    until(lambda: len(seen) == 2)
    assert [(one.deployment, one.end) for one in seen] == [
        ("support-v0", "fell_back"),
        ("support-backup", "hung_up"),
    ]
    span = gateway.last()
    assert span.attributes["failed"][0]["deployment"] == "support-v0"
    assert span.error == "the client hung up" and span.call and not span.call.choices


def test_who_was_not_asked_since_its_circuit_is_open_did_not_fail_again(
    gateway: Running, engine: Upstream, backup: Upstream
) -> None:
    engine.broken_chat = True
    for _ in range(5):
        post(gateway)
    seen = seen_by(gateway)
    backup.broken_chat = True
    assert post(gateway).status_code == 502
    assert [(one.deployment, one.end) for one in seen] == [("support-backup", "failed")]
    span = gateway.last()
    assert span.call and span.call.deployment == "support-backup"
    assert span.attributes["circuit_open"] == "support-v0"
