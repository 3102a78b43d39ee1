"""What observers are told as a request ends: once for each attempt, whatever became of it."""

from pathlib import Path

import httpx

from serving.observing import Seen
from tests.serving.running import body, running
from tests.serving.scripted_upstream import upstream


def test_each_request_is_told_once_with_how_it_ended(tmp_path: Path) -> None:
    told: list[Seen] = []
    with upstream() as engine, running(tmp_path, engine.url) as gateway:
        gateway.gateway.observers.add(told.append)
        ends = {}
        asked = {
            "hello": {},
            "cut": {"stream": True},
            "error": {},
            "bad": {},
            "too many": {"n": 99},
            "no json": {"response_format": {"type": "json_object"}},
        }
        for script, more in asked.items():
            httpx.post(f"{gateway.url}/v1/chat/completions", content=body(script, **more))
            ends[script] = told[-1]
            assert len(told) == len(ends)
    assert {script: seen.end for script, seen in ends.items()} == {
        "hello": "answered",
        "cut": "cut",
        "error": "failed",
        "bad": "refused",
        "too many": "refused",
        "no json": "answered",
    }
    hello = ends["hello"]
    assert (hello.project, hello.deployment, hello.canary) == ("support", "support-v0", False)
    assert (hello.input_tokens, hello.output_tokens, hello.cost_usd) == (4, 5, None)
    assert hello.first_s is not None and hello.total_s is not None
    assert hello.queued_s >= 0 and hello.first_s <= hello.total_s
    assert (hello.refusal, hello.broken) == (False, None)
    assert ends["no json"].broken == "the answer is not JSON"
    assert ends["error"].code == "engine_error" and ends["error"].broken is None
    assert ends["too many"].project == ""


def test_a_listener_that_fails_costs_no_answer_and_hears_no_more(tmp_path: Path) -> None:
    heard = 0

    def failing(seen: Seen) -> None:
        nonlocal heard
        heard += 1
        raise RuntimeError("of its own")

    with upstream() as engine, running(tmp_path, engine.url) as gateway:
        gateway.gateway.observers.add(failing)
        url = f"{gateway.url}/v1/chat/completions"
        assert [httpx.post(url, content=body()).status_code for _ in range(2)] == [200, 200]
    assert heard == 1
