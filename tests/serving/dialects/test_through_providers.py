"""Clients of one protocol before providers of the same and of another: what each gets to see."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from flywheel.records import ToolResult
from tests.serving.running import Running, running, terms
from tests.serving.scripted_messages import CALLS, NEW, THOUGHT, Vendor, vendor
from tests.serving.scripted_upstream import Upstream, upstream


@pytest.fixture(scope="module")
def claude() -> Iterator[Vendor]:
    with vendor() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def gpt() -> Iterator[Upstream]:
    with upstream() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, claude: Vendor, gpt: Upstream
) -> Iterator[Running]:
    providers = {
        "claude": {"url": claude.url, "model": "claude-9", "protocol": "anthropic"},
        "gpt": {"url": gpt.url + "/v1", "model": "gpt-9"},
    }
    folder = tmp_path_factory.mktemp("home")
    with running(folder, "http://127.0.0.1:9", terms=terms(providers=providers)) as up:
        yield up


def ask(gateway: Running, text: str, *, stream: bool = False, **more: Any) -> Any:
    client = anthropic.Anthropic(base_url=gateway.url, api_key="x", max_retries=0, timeout=20)
    messages = more.pop("messages", [{"role": "user", "content": text}])
    request = {"model": "support", "max_tokens": 100, "messages": messages, **more}
    if not stream:
        return client.messages.create(**request)
    with client.messages.stream(**request) as streamed:
        return streamed.get_final_message()


def respond(gateway: Running, said: Any, **more: Any) -> Any:
    client = openai.OpenAI(base_url=gateway.url + "/v1", api_key="x", max_retries=0, timeout=20)
    with client.responses.stream(model="support", input=said, **more) as streamed:
        return streamed.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_messages_meet_messages_in_their_own_words(
    gateway: Running, claude: Vendor, stream: bool
) -> None:
    gateway.champion("claude")
    thinking = {"type": "enabled", "budget_tokens": 50}
    said = ask(gateway, "think", stream=stream, thinking=thinking, extra_body={"speed": "fast"})
    assert said.model == "support-claude" and said.content[0].to_dict() == THOUGHT
    assert (said.usage.input_tokens, said.usage.cache_read_input_tokens) == (10, 90)
    sent = claude.requests[-1]
    assert (sent["thinking"], sent["speed"], sent["model"]) == (thinking, "fast", "claude-9")
    assert sent["messages"] == [{"role": "user", "content": "think"}]
    trace = gateway.traces()[-1]
    call = trace.spans[0].call
    assert call is not None and trace.spans[0].id == said.id
    assert (call.usage.input_tokens, call.usage.cached_input_tokens) == (107, 90)
    new = ask(gateway, "new", stream=stream)
    assert new.content[1].to_dict() == NEW


def test_a_prompts_tokens_are_counted_by_the_provider(gateway: Running) -> None:
    gateway.champion("claude")
    client = anthropic.Anthropic(base_url=gateway.url, api_key="x", max_retries=0, timeout=20)
    hello: Any = [{"role": "user", "content": "hello"}]
    counted = client.messages.count_tokens(
        model="support", messages=hello, thinking={"type": "enabled", "budget_tokens": 2000}
    )
    assert counted.input_tokens == 107


def test_an_error_amid_its_stream_is_the_clients_too(gateway: Running) -> None:
    gateway.champion("claude")
    with pytest.raises(anthropic.APIStatusError, match="it broke"):
        ask(gateway, "late error", stream=True)
    assert gateway.last().error


def test_responses_meet_messages(gateway: Running, claude: Vendor) -> None:
    gateway.champion("claude")
    said = respond(gateway, "tool", instructions="be brief", max_output_tokens=50)
    kinds = [item.type for item in said.output]
    assert kinds == ["message", "function_call", "function_call"]
    assert [item.call_id for item in said.output[1:]] == [call["id"] for call in CALLS]
    assert said.usage.input_tokens_details.cached_tokens == 90
    assert claude.requests[-1]["system"] == [{"type": "text", "text": "be brief"}]


def test_messages_meet_chat_completions_without_words_that_only_engines_know(
    gateway: Running, gpt: Upstream
) -> None:
    gateway.champion("gpt")
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    call = {"type": "tool_use", "id": "t1", "name": "find", "input": {}}
    failed = {"type": "tool_result", "tool_use_id": "t1", "content": "gone", "is_error": True}
    messages = [
        {"role": "user", "content": "where is it?"},
        {"role": "assistant", "content": [thought, call]},
        {"role": "user", "content": [failed]},
    ]
    said = ask(gateway, "", messages=messages, thinking={"type": "enabled", "budget_tokens": 50})
    assert said.content[0].text == "It is shipped." and said.usage.input_tokens == 4
    sent = gpt.requests[-1]
    assert "thinking" not in sent and sent["model"] == "gpt-9"
    assert set(sent["messages"][1]) == {"role", "content", "tool_calls"}
    assert set(sent["messages"][2]) == {"role", "content", "tool_call_id"}
    recorded = gateway.last().call
    assert recorded is not None
    assert recorded.input[2].parts == (ToolResult(content="gone", id="t1", is_error=True),)
