"""What broke off is recorded as that, whichever protocol its client speaks; and what the chat form
asks for reaches the engine as it was written."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from flywheel.records import Image
from serving.limits import Limits
from tests.serving.running import Running, running
from tests.serving.scripted_upstream import Upstream, upstream

SPOKEN = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


@pytest.fixture
def engine() -> Iterator[Upstream]:
    with upstream() as scripted:
        yield scripted


def asked(path: str, text: str, **more: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    said = {"input": text} if path == "/v1/responses" else {"messages": messages}
    longest = {"max_tokens": 50} if path == "/v1/messages" else {}
    return json.dumps({"model": "support", **said, **longest, **more}).encode()


def recorded(up: Running, number: int) -> Any:
    deadline = time.monotonic() + 20
    while len(up.traces()) < number and time.monotonic() < deadline:
        time.sleep(0.02)
    return up.traces()[number - 1].spans[0]


def test_a_client_that_hangs_up_leaves_what_came_so_far(tmp_path: Path, engine: Upstream) -> None:
    with running(tmp_path, engine.url) as up:
        for number, path in enumerate(SPOKEN, start=1):
            content = asked(path, "hold", stream=True)
            with httpx.stream("POST", up.url + path, content=content, timeout=20) as answer:
                next(answer.iter_bytes())
            span = recorded(up, number)
            assert span.error == "the client hung up"
            assert span.call.choices[0].finish_reason is None


def test_an_engine_that_stalls_is_an_error_in_each_protocols_shape(
    tmp_path: Path, engine: Upstream
) -> None:
    shapes = dict.fromkeys(SPOKEN, "timeout_error")
    with running(tmp_path, engine.url, limits=Limits(silence_s=0.3)) as up:
        for number, (path, kind) in enumerate(shapes.items(), start=1):
            answer = httpx.post(up.url + path, content=asked(path, "hang"), timeout=20)
            assert (answer.status_code, answer.json()["error"]["type"]) == (504, kind)
            assert "took too long" in recorded(up, number).error


def test_what_a_chat_asks_for_reaches_the_engine_as_it_was_written(
    tmp_path: Path, engine: Upstream
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    content: Any = [{"type": "text", "text": "what is it?"}, picture]
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    with running(tmp_path, engine.url) as up:
        client = openai.OpenAI(base_url=up.url + "/v1", api_key="none", max_retries=0)
        said = client.chat.completions.create(
            model="support",
            messages=[{"role": "user", "content": content}],
            response_format=form,
            seed=7,
            stop=["END"],
            n=2,
            logprobs=True,
            top_logprobs=3,
            parallel_tool_calls=False,
        )
        assert len(said.choices) == 2 and said.choices[1].logprobs is not None
        call = up.traces()[-1].spans[0].call
        assert call is not None and isinstance(call.input[0].parts[1], Image)
        assert (call.sampling.seed, call.sampling.stop) == (7, ("END",))
    sent = engine.requests[-1]
    assert sent["messages"] == [{"role": "user", "content": content}]
    assert (sent["response_format"], sent["seed"], sent["stop"]) == (form, 7, ["END"])
    assert (sent["n"], sent["top_logprobs"], sent["parallel_tool_calls"]) == (2, 3, False)
