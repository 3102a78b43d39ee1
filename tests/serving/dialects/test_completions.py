"""Text completions over real sockets, spoken by OpenAI's own client."""

from typing import Any

import httpx
import openai
import pytest

from flywheel.records import Unknown
from tests.serving.running import Running
from tests.serving.scripted_upstream import IDS, PROMPT, WORDS, Upstream

ANSWER = "".join(WORDS)


def complete(gateway: Running, prompt: Any = "once upon", **more: Any) -> Any:
    client = openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0, timeout=20)
    return client.completions.create(model="support", prompt=prompt, **more)


def test_a_completion_is_the_engines_and_recorded_with_both_streams(
    gateway: Running, engine: Upstream
) -> None:
    said = complete(gateway, max_tokens=20, extra_body={"min_p": 0.125})
    assert (said.object, said.model, said.choices[0].text) == (
        "text_completion",
        "support-v0",
        ANSWER,
    )
    assert said.choices[0].logprobs is None and not hasattr(said.choices[0], "token_ids")
    assert said.kept_field == 1.5
    sent = engine.requests[-1]
    assert (sent["prompt"], sent["max_tokens"], sent["min_p"]) == ("once upon", 20, 0.125)
    assert sent["model"] == "base" and "messages" not in sent
    span = gateway.last()
    assert (span.id, span.name) == (said.id, "completions")
    assert span.call.input[0].text == "once upon"
    choice = span.call.choices[0]
    assert choice.message.text == ANSWER and span.call.usage.output_tokens == 5
    tokens = choice.tokens
    assert (tokens.prompt_ids, tokens.completion_ids) == (tuple(PROMPT), tuple(IDS))
    assert tokens.logprobs == (-0.25,) * 5 and tokens.template_digest is None


def test_echo_and_log_probabilities_pass_and_the_record_has_the_answer_alone(
    gateway: Running,
) -> None:
    said = complete(gateway, echo=True, logprobs=1, max_tokens=0)
    assert said.choices[0].text == "once upon" + ANSWER
    assert len(said.choices[0].logprobs.token_logprobs) == 7
    choice = gateway.last().call.choices[0]
    assert choice.message.text == ANSWER and choice.tokens.logprobs == (-0.25,) * 5


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT], ["once upon"]])
def test_a_prompt_may_be_token_ids_or_a_list_of_one(
    gateway: Running, engine: Upstream, prompt: Any
) -> None:
    complete(gateway, prompt)
    assert engine.requests[-1]["prompt"] == prompt
    part = gateway.last().call.input[0].parts[0]
    if PROMPT in (prompt, prompt[0]):
        assert isinstance(part, Unknown) and part.raw["token_ids"] == PROMPT


@pytest.mark.parametrize("prompt", [[], ["a", "b"], [[1], [2]], [1, "a"], [-1], [[]], {}])
def test_what_is_not_one_prompt_is_refused(gateway: Running, prompt: Any) -> None:
    body = {"model": "support", "prompt": prompt}
    answer = httpx.post(f"{gateway.url}/v1/completions", json=body)
    assert answer.status_code == 400 and "prompt" in answer.json()["error"]["message"]


def test_a_stream_passes_event_by_event_and_is_recorded(gateway: Running) -> None:
    chunks = list(complete(gateway, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == ANSWER
    assert all(chunk.usage is None for chunk in chunks)
    span = gateway.last()
    assert {chunk.id for chunk in chunks} == {span.id}
    assert span.call.choices[0].tokens.completion_ids == tuple(IDS)
    counted = list(complete(gateway, stream=True, stream_options={"include_usage": True}))
    assert counted[-1].usage.completion_tokens == 5
