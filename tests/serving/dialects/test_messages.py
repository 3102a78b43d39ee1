"""Anthropic's Messages over real sockets, spoken by the vendor's own client."""

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from flywheel.records import Image, Reasoning, Text, ToolCall, ToolResult
from serving.key_file import digest_of
from serving.keys import Keys
from serving.limits import Limits
from tests.serving.running import Running, running
from tests.serving.scripted_upstream import IDS, PROMPT, WORDS, Upstream

ANSWER = "".join(WORDS)
PIXEL = "iVBORw0KGgo="
TOOLS: Any = [
    {
        "name": name,
        "description": f"{name}s",
        "input_schema": {"type": "object", "properties": {key: {}}},
    }
    for name, key in (("find", "order"), ("send", "to"))
]


def client(gateway: Running, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0, timeout=20)


def asked(text: str = "hello", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "support", "max_tokens": 100, "messages": messages, **more}


def test_a_whole_answer_is_a_message_and_recorded_with_both_streams(gateway: Running) -> None:
    said = client(gateway).messages.create(
        **asked(system="be brief", extra_body={"temperature": 0.5})
    )
    assert said.type == "message" and said.role == "assistant" and said.model == "support-v0"
    assert [block.to_dict() for block in said.content] == [{"type": "text", "text": ANSWER}]
    assert (said.stop_reason, said.stop_sequence) == ("end_turn", None)
    assert (said.usage.input_tokens, said.usage.output_tokens) == (4, 5)
    span = gateway.last()
    assert (span.id, span.name) == (said.id, "messages")
    assert [message.role for message in span.call.input] == ["system", "user"]
    tokens = span.call.choices[0].tokens
    assert (tokens.prompt_ids, tokens.completion_ids) == (tuple(PROMPT), tuple(IDS))


def test_a_stream_is_told_in_the_clients_events_and_ends_after_the_record(gateway: Running) -> None:
    with client(gateway).messages.stream(**asked("thinks")) as stream:
        kinds = [event.type for event in stream]
        said = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert [block.type for block in said.content] == ["thinking", "text"]
    assert (said.content[0].thinking, said.content[1].text) == ("so far", ANSWER)  # type: ignore[union-attr]
    assert said.stop_reason == "end_turn"
    assert (said.usage.input_tokens, said.usage.output_tokens) == (4, 5)
    span = gateway.last()
    assert span.id == said.id and span.attributes["stream"] is True
    assert span.call.choices[0].message.parts == (Reasoning(text="so far"), Text(text=ANSWER))


@pytest.mark.parametrize("streamed", [False, True])
def test_parallel_calls_come_as_blocks_one_after_the_other(
    gateway: Running, engine: Upstream, streamed: bool
) -> None:
    request = asked("calls", tools=TOOLS, tool_choice={"type": "any"})
    if streamed:
        with client(gateway).messages.stream(**request) as stream:
            open_blocks = 0
            for event in stream:
                open_blocks += {"content_block_start": 1, "content_block_stop": -1}.get(
                    event.type, 0
                )
                assert open_blocks <= 1
            said = stream.get_final_message()
    else:
        said = client(gateway).messages.create(**request)
    calls = [block.to_dict() for block in said.content]
    assert said.stop_reason == "tool_use"
    assert [(call["id"], call["name"], call["input"]) for call in calls] == [
        ("call_a", "find", {"order": 1}),
        ("call_b", "send", {"to": "x"}),
    ]
    assert engine.requests[-1]["tool_choice"] == "required"
    assert engine.requests[-1]["tools"][0]["function"]["parameters"] == TOOLS[0]["input_schema"]


def test_results_images_thoughts_and_unknown_fields_reach_the_engine_and_the_record(
    gateway: Running, engine: Upstream
) -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
    }
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no such"}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "what is it?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "find", "input": {"order": 2}},
            ],
        },
        {"role": "user", "content": [result, {"type": "text", "text": "and now?"}]},
    ]
    request = asked(
        tools=TOOLS,
        stop_sequences=["END"],
        metadata={"user_id": "ann"},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        thinking={"type": "enabled", "budget_tokens": 1024},
        extra_body={"min_p": 0.125},
    )
    client(gateway).messages.create(**{**request, "messages": messages})
    sent = engine.requests[-1]
    assert [message["role"] for message in sent["messages"]] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]
    url = sent["messages"][0]["content"][0]["image_url"]["url"]
    assert url == f"data:image/png;base64,{PIXEL}"
    assert sent["messages"][1]["reasoning_content"] == "hm"
    assert sent["messages"][2]["content"] == "no such"
    assert (sent["stop"], sent["user"], sent["min_p"]) == (["END"], "ann", 0.125)
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert "thinking" not in sent
    trace = gateway.traces()[-1]
    asked_of = trace.spans[0].call
    assert asked_of is not None and trace.user == "ann"
    assert isinstance(asked_of.input[0].parts[0], Image)
    assert ToolCall(name="find", arguments='{"order":2}', id="t1") in asked_of.input[1].parts
    assert asked_of.input[2].parts == (ToolResult(content="no such", id="t1", is_error=True),)


def test_tokens_are_counted_and_not_recorded(gateway: Running, engine: Upstream) -> None:
    before = len(gateway.traces())
    request = asked()
    del request["max_tokens"]
    assert client(gateway).messages.count_tokens(**request).input_tokens == 4
    assert engine.requests[-1]["max_tokens"] == 1
    assert len(gateway.traces()) == before


def test_models_are_listed_in_the_clients_own_words(gateway: Running) -> None:
    names = [(model.id, model.type) for model in client(gateway).models.list()]
    assert ("support", "model") in names
    assert client(gateway).models.retrieve("support").display_name == "support"


def test_errors_have_the_protocols_shape(gateway: Running) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client(gateway).messages.create(**asked() | {"model": "nobody"})
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client(gateway).messages.create(**asked(stop_sequences="END"))
    assert "stop_sequences" in wrong.value.message
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client(gateway).messages.create(**asked() | {"max_tokens": 10**6})
    with pytest.raises(anthropic.APIStatusError) as failed:
        client(gateway).messages.create(**asked("error"))
    assert failed.value.status_code == 502
    assert failed.value.body["type"] == "error"  # type: ignore[index]
    named = {"anthropic-version": "2023-06-01"}
    for path, status in (("/v1/messages", 405), ("/v1/messages/batches", 404)):
        answer = httpx.get(gateway.url + path, headers=named)
        assert (answer.status_code, answer.json()["type"]) == (status, "error")


def test_the_door_speaks_it_too(tmp_path: Path, engine: Upstream) -> None:
    limits, keys = Limits(body=2000), Keys((digest_of(b"right"),))
    with running(tmp_path, engine.url, limits=limits, keys=keys) as up:
        with pytest.raises(anthropic.AuthenticationError) as nobody:
            client(up, "wrong").messages.create(**asked())
        assert nobody.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        with pytest.raises(anthropic.APIStatusError) as large:
            client(up, "right").messages.create(**asked("x" * 3000))
        assert large.value.body["error"]["type"] == "request_too_large"  # type: ignore[index]
        assert client(up, "right").messages.create(**asked()).content


@pytest.mark.parametrize("script", ["cut", "late error"])
def test_a_stream_that_breaks_off_ends_with_an_error_and_is_recorded_as_that(
    gateway: Running, script: str
) -> None:
    with (
        pytest.raises(anthropic.APIStatusError),
        client(gateway).messages.stream(**asked(script)) as stream,
    ):
        list(stream)
    span = gateway.last()
    assert span.error and span.call.choices[0].finish_reason is None
    assert span.call.choices[0].message.text == "It is "


def test_an_engine_that_counts_nothing_is_not_said_to_have_counted_zero(gateway: Running) -> None:
    said = httpx.post(f"{gateway.url}/v1/messages", content=json.dumps(asked("nousage"))).json()
    assert said["usage"]["output_tokens"] is None
    counted = f"{gateway.url}/v1/messages/count_tokens"
    assert httpx.post(counted, content=json.dumps(asked("nousage"))).status_code == 502
