"""Every protocol before a real engine: answered, counted, and recorded with its token ids."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from serving.engines.process import EngineProcess
from tests.serving.running import Running, running

pytestmark = pytest.mark.slow  # the others of the engine that it shares are


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: EngineProcess) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("gateway"), engine.url) as up:
        yield up


def test_each_protocol_is_answered_and_recorded_alike(gateway: Running) -> None:
    claude = anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0)
    gpt = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    chat: Any = {"model": "support", "messages": [{"role": "user", "content": "hi"}]}
    short: Any = {**chat, "max_tokens": 4, "extra_body": {"seed": 3, "temperature": 0.0}}
    said = claude.messages.create(**short)
    with claude.messages.stream(**short) as stream:
        again = stream.get_final_message()
    events: Any = list(
        gpt.responses.create(
            model="support", input="hi", max_output_tokens=4, temperature=0, stream=True
        )
    )
    text = gpt.completions.create(model="support", prompt=[5, 6, 7], max_tokens=4, temperature=0)
    cut = said.stop_reason == "max_tokens"
    assert events[-1].type == ("response.incomplete" if cut else "response.completed")
    assert said.stop_reason == again.stop_reason
    assert [b.to_dict() for b in said.content] == [b.to_dict() for b in again.content]
    assert said.usage.input_tokens == claude.messages.count_tokens(**chat).input_tokens
    assert text.usage is not None and text.usage.prompt_tokens == 3
    spans = [trace.spans[0] for trace in gateway.traces()]
    assert [span.name for span in spans] == ["messages", "messages", "responses", "completions"]
    for span in spans:
        assert span.call is not None and span.error is None
        tokens = span.call.choices[0].tokens
        assert tokens is not None and 0 < len(tokens.completion_ids) <= 4
        assert len(tokens.logprobs or ()) == len(tokens.completion_ids)
    assert spans[-1].call is not None
    whole = spans[-1].call.choices[0].tokens
    assert whole is not None and whole.prompt_ids == (5, 6, 7) and whole.template_digest is None


def test_what_this_engine_does_not_do_is_said_in_the_clients_words(gateway: Running) -> None:
    body = {"model": "support", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}
    asked = httpx.post(f"{gateway.url}/v1/messages", content=json.dumps({**body, "min_p": 0.5}))
    assert asked.status_code == 400 and "min_p" in asked.json()["error"]["message"]
    embedded = httpx.post(
        f"{gateway.url}/v1/embeddings", content=json.dumps({"model": "support", "input": "x"})
    )
    assert embedded.status_code == 400 and "no embeddings" in embedded.json()["error"]["message"]
