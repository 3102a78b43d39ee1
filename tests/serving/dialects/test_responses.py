"""OpenAI's Responses over real sockets, spoken by the vendor's own client."""

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from flywheel.home import Home
from flywheel.records import Image, ToolCall, ToolResult
from serving.key_file import Key, add
from serving.keys import Keys
from tests.serving.running import Running, running
from tests.serving.scripted_upstream import IDS, PROMPT, WORDS, Upstream

ANSWER = "".join(WORDS)
TOOLS: Any = [
    {
        "type": "function",
        "name": name,
        "description": f"{name}s",
        "parameters": {"type": "object", "properties": {key: {}}},
        "strict": False,
    }
    for name, key in (("find", "order"), ("send", "to"))
]


def client(gateway: Running, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=key, max_retries=0, timeout=20)


def ask(gateway: Running, said: Any = "hello", **more: Any) -> Any:
    return client(gateway).responses.create(model="support", input=said, **more)


def streamed(gateway: Running, said: str, **more: Any) -> Any:
    with client(gateway).responses.stream(model="support", input=said, **more) as stream:
        return stream.get_final_response()


def test_a_whole_answer_is_a_response_and_recorded_with_both_streams(gateway: Running) -> None:
    said = ask(gateway, instructions="be brief", temperature=0.5, metadata={"a": "b"})
    assert (said.object, said.status, said.model) == ("response", "completed", "support-v0")
    assert said.output_text == ANSWER
    assert (said.instructions, said.temperature, said.metadata) == ("be brief", 0.5, {"a": "b"})
    assert (said.usage.input_tokens, said.usage.output_tokens) == (4, 5)
    span = gateway.last()
    assert (span.id, span.name) == (said.id, "responses")
    assert [message.role for message in span.call.input] == ["system", "user"]
    tokens = span.call.choices[0].tokens
    assert (tokens.prompt_ids, tokens.completion_ids) == (tuple(PROMPT), tuple(IDS))


def test_a_stream_has_every_event_in_order_and_ends_after_the_record(gateway: Running) -> None:
    with client(gateway).responses.stream(model="support", input="thinks") as stream:
        events = list(stream)
        said = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    for kind in ("output_item", "content_part"):
        added = kinds.count(f"response.{kind}.added")  # type: ignore[arg-type]
        assert added == kinds.count(f"response.{kind}.done") == 2  # type: ignore[arg-type]
    assert [item.type for item in said.output] == ["reasoning", "message"]
    assert said.output_text == ANSWER and said.usage is not None
    span = gateway.last()
    assert (span.id, span.attributes["stream"]) == (said.id, True)
    assert client(gateway).responses.retrieve(said.id).output_text == ANSWER


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_are_items_of_their_own(
    gateway: Running, engine: Upstream, stream: bool
) -> None:
    request: Any = {"tools": TOOLS, "tool_choice": {"type": "function", "name": "find"}}
    said = (streamed if stream else ask)(gateway, "calls", **request)
    assert [(item.call_id, item.name, item.arguments) for item in said.output] == [
        ("call_a", "find", '{"order": 1}'),
        ("call_b", "send", '{"to": "x"}'),
    ]
    sent = engine.requests[-1]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "find"}}
    assert sent["tools"][0]["function"]["parameters"] == TOOLS[0]["parameters"]


def test_items_become_messages_and_unknown_fields_pass(gateway: Running, engine: Upstream) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    words = {"type": "input_text", "text": "what is it?"}
    call = {"type": "function_call", "name": "find", "arguments": "{}"}
    items = [
        {"role": "user", "content": [picture, words]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {**call, "call_id": "c1"},
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
    ]
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    more: Any = {"text": {"format": schema}, "max_output_tokens": 50}
    ask(gateway, items, tools=TOOLS, user="ann", extra_body={"min_p": 0.125}, **more)
    sent = engine.requests[-1]
    assert [m["role"] for m in sent["messages"]] == ["user", "assistant", "tool", "tool"]
    assert sent["messages"][1]["reasoning_content"] == "hm"
    assert [call["id"] for call in sent["messages"][1]["tool_calls"]] == ["c1", "c2"]
    assert (sent["max_tokens"], sent["min_p"], sent["user"]) == (50, 0.125, "ann")
    assert sent["response_format"]["json_schema"]["name"] == "x"
    asked = gateway.last().call
    assert isinstance(asked.input[0].parts[0], Image)
    assert ToolCall(name="find", arguments="{}", id="c1") in asked.input[1].parts
    assert asked.input[3].parts == (ToolResult(content="two", id="c2"),)


def test_what_goes_on_from_a_response_is_the_same_conversation(
    gateway: Running, engine: Upstream
) -> None:
    first = ask(gateway, "calls", tools=TOOLS, instructions="be brief")
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "done"}
        for item in first.output
    ]
    second = ask(gateway, results, previous_response_id=first.id, instructions="be kind")
    roles = [message["role"] for message in engine.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    assert engine.requests[-1]["messages"][0]["content"] == "be kind"
    third = ask(gateway, "thanks", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    traces = gateway.traces()[-3:]
    assert len({trace.id for trace in traces}) == 1
    assert [trace.spans[0].parents for trace in traces] == [(), (first.id,), (second.id,)]


def test_what_is_not_stored_is_not_remembered_nor_given_to_another_key(
    tmp_path: Path, engine: Upstream, gateway: Running
) -> None:
    unstored = ask(gateway, store=False)
    with pytest.raises(openai.BadRequestError, match="not remembered"):
        ask(gateway, previous_response_id=unstored.id)
    stored = ask(gateway)
    client(gateway).responses.delete(stored.id)
    with pytest.raises(openai.NotFoundError):
        client(gateway).responses.retrieve(stored.id)
    one, two = (add(Home(tmp_path), Key(name=name)) for name in ("one", "two"))
    with running(tmp_path, engine.url, keys=Keys(home=Home(tmp_path))) as up:
        own = client(up, one).responses.create(model="support", input="x")
        client(up, one).responses.retrieve(own.id)
        with pytest.raises(openai.NotFoundError):
            client(up, two).responses.retrieve(own.id)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"conversation": "conv_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": []}, "input is empty"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"max_output_tokens": "x"}, "max_output_tokens"),
    ],
)
def test_what_is_not_done_here_is_refused_in_its_own_words(
    gateway: Running, more: dict[str, Any], said: str
) -> None:
    body = {"model": "support", "input": "hello", **more}
    answer = httpx.post(f"{gateway.url}/v1/responses", json=body)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


def test_a_refusal_and_log_probabilities_have_their_place(gateway: Running) -> None:
    said = ask(gateway, "refuses")
    assert said.output[0].content[0].refusal == "I will not."
    assert streamed(gateway, "refuses").output[0].content[0].refusal == "I will not."
    told: Any = {"include": ["message.output_text.logprobs"]}
    text = ask(gateway, **told).output[0].content[0]
    assert [one.logprob for one in text.logprobs] == [-0.25] * 5
    text = streamed(gateway, "hello", **told).output[0].content[0]
    assert [one.logprob for one in text.logprobs] == [-0.25] * 4


@pytest.mark.parametrize("script", ["cut", "late error"])
def test_a_stream_that_breaks_off_fails_and_is_recorded_as_that(
    gateway: Running, script: str
) -> None:
    events = list(ask(gateway, script, stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed" and events[-1].response.error.message
    span = gateway.last()
    assert span.error and span.call.choices[0].finish_reason is None
