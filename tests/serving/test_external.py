"""A provider's model as a deployment: asked in its own protocol, answered and recorded in ours."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from flywheel.records import Reasoning, ToolCall
from tests.serving.running import Running, running, terms
from tests.serving.scripted_messages import NEW, THOUGHT, Vendor, vendor
from tests.serving.scripted_upstream import Upstream, upstream

KEY = "sk-of-the-vendor"
ASK: list[Any] = [{"role": "user", "content": "where is my order?"}]


@pytest.fixture
def openai_like() -> Iterator[Upstream]:
    with upstream() as scripted:
        yield scripted


@pytest.fixture
def claude() -> Iterator[Vendor]:
    with vendor() as scripted:
        yield scripted


@pytest.fixture
def gateway(
    tmp_path: Path, openai_like: Upstream, claude: Vendor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    monkeypatch.setenv("VENDORS_KEY", KEY)
    providers = {
        "openai": {"url": openai_like.url + "/v1", "model": "gpt-9", "key_env": "VENDORS_KEY"},
        "claude": {
            "url": claude.url,
            "model": "claude-9",
            "protocol": "anthropic",
            "key_env": "VENDORS_KEY",
        },
    }
    with running(tmp_path, "http://127.0.0.1:9", terms=terms(providers=providers)) as up:
        yield up


def client(gateway: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)


def chat(gateway: Running, text: str = "where is my order?", **more: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return client(gateway).chat.completions.create(model="support", messages=messages, **more)


def streamed(gateway: Running, text: str) -> tuple[str, list[Any], Any]:
    """The words, the chunks and the usage."""
    options = {"include_usage": True}
    chunks = list(chat(gateway, text, stream=True, stream_options=options))
    words = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    return words, chunks, chunks[-1].usage


def test_an_openai_provider_is_asked_for_what_the_client_asked_and_nothing_else(
    gateway: Running, openai_like: Upstream
) -> None:
    gateway.champion("openai")
    said = chat(gateway, extra_body={"some_new_field": {"kept": [1.50]}})
    assert said.model == "support-openai" and said.choices[0].message.content == "It is shipped."
    got = openai_like.requests[-1]
    assert got == {"model": "gpt-9", "messages": ASK, "some_new_field": {"kept": [1.5]}}
    call = gateway.last().call
    assert call and call.deployment == "support-openai" and call.routing_probability == 1.0
    assert call.choices[0].tokens is None and call.usage.input_tokens == 4
    assert gateway.last().attributes["tokens"] == "support-openai is a provider's model"
    assert gateway.last().attributes["provider"] == {"name": "openai", "model": "gpt-9"}


def test_a_stream_of_it_brings_its_usage_into_the_record_alone(
    gateway: Running, openai_like: Upstream
) -> None:
    gateway.champion("openai")
    chunks = list(chat(gateway, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "It is shipped."
    assert openai_like.requests[-1]["stream_options"] == {"include_usage": True}
    call = gateway.last().call
    assert call and call.usage.output_tokens == 5 and call.choices[0].finish_reason == "stop"


def test_messages_are_asked_and_answered_in_the_chat_form(gateway: Running, claude: Vendor) -> None:
    gateway.champion("claude")
    said = chat(gateway, stop="END", temperature=0.5, user="ann", seed=3)
    assert said.choices[0].message.content == "It is shipped."
    assert said.choices[0].finish_reason == "stop"
    assert claude.requests[-1] == {
        "model": "claude-9",
        "max_tokens": 512,
        "messages": [{"role": "user", "content": [{"type": "text", "text": ASK[0]["content"]}]}],
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "metadata": {"user_id": "ann"},
    }
    assert claude.headers[-1]["x-api-key"] == KEY
    assert claude.headers[-1]["anthropic-version"] == "2023-06-01"
    assert gateway.last().attributes["provider"]["left_out"] == ["seed"]


@pytest.mark.parametrize("stream", [False, True])
def test_both_vendors_conventions_of_cached_tokens_give_the_same_counts(
    gateway: Running, stream: bool
) -> None:
    gateway.champion("claude")
    if stream:
        _, _, usage = streamed(gateway, "hello")
    else:
        usage = chat(gateway, "hello").usage
    assert usage.prompt_tokens == 107 and usage.completion_tokens == 5
    assert usage.prompt_tokens_details.cached_tokens == 90
    call = gateway.last().call
    assert call and call.usage.input_tokens == 107 and call.usage.cached_input_tokens == 90
    assert call.usage.output_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls_of_messages_come_as_openais(gateway: Running, stream: bool) -> None:
    gateway.champion("claude")
    if stream:
        _, chunks, _ = streamed(gateway, "tool")
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
    else:
        said = chat(gateway, "tool")
        assert said.choices[0].finish_reason == "tool_calls"
        assert said.choices[0].message.tool_calls[1].id == "toolu_b"
    call = gateway.last().call
    assert call
    parts = [part for part in call.choices[0].message.parts if isinstance(part, ToolCall)]
    assert [(part.id, part.name, json.loads(part.arguments)) for part in parts] == [
        ("toolu_a", "find", {"order": 1}),
        ("toolu_b", "list", {}),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_read_and_go_back_signed(
    gateway: Running, claude: Vendor, stream: bool
) -> None:
    gateway.champion("claude")
    if stream:
        _, chunks, _ = streamed(gateway, "think")
        deltas = [c.choices[0].delta.model_dump() for c in chunks if c.choices]
        blocks = next(d["thinking_blocks"] for d in deltas if "thinking_blocks" in d)
        assert "".join(d.get("reasoning_content") or "" for d in deltas) == "Let me see."
    else:
        message = chat(gateway, "think").choices[0].message.model_dump()
        blocks = message["thinking_blocks"]
    call = gateway.last().call
    assert call and Reasoning(text="Let me see.") in call.choices[0].message.parts
    history = [*ASK, {"role": "assistant", "content": "Hm.", "thinking_blocks": blocks}, *ASK]
    client(gateway).chat.completions.create(model="support", messages=history)
    assert claude.requests[-1]["messages"][1]["content"][0] == THOUGHT


def test_a_block_that_nobody_knows_stays_in_the_record(gateway: Running) -> None:
    gateway.champion("claude")
    for stream in (False, True):
        list(chat(gateway, "new", stream=True)) if stream else chat(gateway, "new")
        call = gateway.last().call
        assert call and NEW in [
            block for part in call.choices[0].message.parts for block in getattr(part, "raw", [])
        ]


def test_a_whole_conversation_is_turned_as_messages_want_it(
    gateway: Running, claude: Vendor
) -> None:
    gateway.champion("claude")
    calls = [
        {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "send", "arguments": "no json"}},
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": "and now?"},
    ]
    tool: Any = {
        "type": "function",
        "function": {"name": "find", "description": "d", "parameters": {"type": "object"}},
    }
    schema = {"type": "object", "properties": {}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    client(gateway).chat.completions.create(
        model="support",
        messages=messages,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        response_format=form,
        max_completion_tokens=77,
    )
    assert claude.requests[-1] == {
        "model": "claude-9",
        "max_tokens": 77,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "a", "name": "find", "input": {"x": 1}},
                    {
                        "type": "tool_use",
                        "id": "b",
                        "name": "send",
                        "input": {"arguments": "no json"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a",
                        "content": [{"type": "text", "text": "found"}],
                    },
                    {"type": "tool_result", "tool_use_id": "b"},
                    {"type": "text", "text": "and now?"},
                ],
            },
        ],
        "tools": [{"name": "find", "input_schema": {"type": "object"}, "description": "d"}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_messages_cannot_give_is_refused_in_words(
    gateway: Running, claude: Vendor, asked: Any, field: str
) -> None:
    gateway.champion("claude")
    with pytest.raises(openai.BadRequestError) as refused:
        chat(gateway, **asked)
    assert refused.value.param == field and not claude.requests


def test_an_error_amid_its_stream_is_recorded_as_a_cut(gateway: Running) -> None:
    gateway.champion("claude")
    with pytest.raises(openai.APIError, match="it broke"):
        list(chat(gateway, "late error", stream=True))
    assert gateway.last().error == "it broke"


def test_its_key_is_in_no_error_and_one_that_is_not_set_is_named(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.champion("claude")
    answer = httpx.post(
        gateway.url + "/v1/chat/completions",
        json={"model": "support", "messages": [{"role": "user", "content": "key"}]},
    )
    assert answer.status_code == 502 and KEY not in answer.text and "another key" in answer.text
    assert KEY not in str(gateway.traces())
    monkeypatch.delenv("VENDORS_KEY")
    with pytest.raises(openai.InternalServerError, match="cannot be asked"):
        chat(gateway)


def test_overloaded_says_when_to_come_again(gateway: Running) -> None:
    gateway.champion("claude")
    with pytest.raises(openai.InternalServerError) as refused:
        chat(gateway, "overloaded")
    assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"] == "2"


def test_it_answers_while_our_engine_is_away(gateway: Running) -> None:
    gateway.champion("openai")
    gateway.gateway.engine.phase = "restarting"
    assert chat(gateway).choices[0].message.content == "It is shipped."
