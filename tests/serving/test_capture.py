"""Streams in every cut and shape, and messages of every part, against what the record must hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import BadRecord, EngineError
from flywheel.ids import digest_bytes
from flywheel.records import (
    File,
    Image,
    Message,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    Truncated,
    Unknown,
)
from serving.answer import Rewrite, usage_of
from serving.conversation import Offload, message_of
from serving.dialects.chat import SpeakingChat
from serving.stream import StreamedAnswer
from tests.serving.scripted_upstream import IDS, PROMPT, WORDS, events

REWRITE = Rewrite("chatcmpl-ours", "support-v1", logprobs=False, ids=False, usage=False)
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def stream(*chunks: Any, done: bool = True, end: str = "\n") -> bytes:
    lines = [f"data: {json.dumps(chunk)}{end}{end}" for chunk in chunks]
    return ("".join(lines) + (f"data: [DONE]{end}{end}" if done else "")).encode()


def delta(index: int = 0, finish: str | None = None, **content: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": content, "finish_reason": finish}]}


def streamed(data: bytes, *, choices: int = 1, step: int | None = None) -> StreamedAnswer:
    answer = StreamedAnswer(REWRITE, choices, SpeakingChat())
    for start in range(0, len(data), step or len(data)):
        answer.feed(data[start : start + (step or len(data))])
    return answer


def message(data: bytes) -> dict[str, Any]:
    return streamed(data).answer().choices[0].message


@pytest.mark.parametrize("step", [1, 2, 7, 100, None])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_where_the_network_cuts_a_stream_changes_nothing(step: int | None, end: str) -> None:
    asked = {"model": "m", "logprobs": True, "return_token_ids": True}
    data = stream(*events({**asked, "stream_options": {"include_usage": True}}, ""), end=end)
    answer = streamed(data, step=step)
    assert answer.done and answer.finished
    (choice,) = answer.answer().choices
    assert choice.message == {"role": "assistant", "content": "".join(WORDS)}
    assert choice.token_ids == tuple(IDS)
    assert choice.logprobs and len(choice.logprobs.content or ()) == 5
    assert answer.answer().prompt_token_ids == tuple(PROMPT)
    assert answer.answer().usage == {"prompt_tokens": 4, "completion_tokens": 5}


def test_the_finish_and_all_after_it_is_held() -> None:
    answer = StreamedAnswer(REWRITE, 1, SpeakingChat())
    now = answer.feed(stream(delta(content="a"), delta(finish="stop", content="b"), done=False))
    assert b'"a"' in now and b'"b"' not in now
    assert answer.feed(b": still here\n\n" + stream({"choices": [], "usage": {"x": 1}})) == b""
    assert b'"b"' in b"".join(answer.held) and b": still here\n\n" in answer.held


def test_comments_pass_and_events_of_many_lines_are_one() -> None:
    answer = StreamedAnswer(REWRITE, 1, SpeakingChat())
    assert answer.feed(b": ping\n\n") == b": ping\n\n"
    many = b'event: x\ndata: {"choices":\ndata: [{"delta": {"content": "hi"}}]}\n\n'
    assert b'"hi"' in answer.feed(many)
    assert answer.answer().choices[0].message["content"] == "hi"


def test_two_entries_of_one_index_in_one_chunk_are_one_call() -> None:
    parts = [
        {"index": 0, "id": "c1", "function": {"name": "find", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{}"}},
    ]
    (call,) = message(stream(delta(tool_calls=parts)))["tool_calls"]
    assert call["id"] == "c1" and call["function"] == {"name": "find", "arguments": "{}"}


def test_a_name_that_is_repeated_with_each_fragment_stays_one_name() -> None:
    parts = [
        [{"index": 0, "id": "c1", "function": {"name": "find", "arguments": '{"a":'}}],
        [{"index": 0, "id": "c1", "function": {"name": "find", "arguments": "1}"}}],
    ]
    (call,) = message(stream(*(delta(tool_calls=part) for part in parts)))["tool_calls"]
    assert call["function"] == {"name": "find", "arguments": '{"a":1}'}


def test_calls_without_an_index_begin_with_their_id() -> None:
    parts = [
        [{"id": "c1", "function": {"name": "a", "arguments": "{"}}],
        [{"function": {"arguments": "}"}}],
        [{"id": "c2", "function": {"name": "b", "arguments": "{}"}}],
    ]
    calls = message(stream(*(delta(tool_calls=part) for part in parts)))["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ["{}", "{}"]


def test_null_and_empty_content_stay_apart_in_a_stream() -> None:
    assert (
        message(stream(delta(role="assistant", content=""), delta(finish="stop")))["content"] == ""
    )
    assert message(stream(delta(role="assistant"), delta(finish="stop")))["content"] is None
    call = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]
    assert message(stream(delta(content=""), delta(tool_calls=call)))["content"] is None


def test_reasoning_and_refusals_are_put_together_too() -> None:
    pieces = [{"reasoning_content": "let "}, {"reasoning_content": "me"}, {"refusal": "no"}]
    whole = message(stream(*(delta(**piece) for piece in pieces)))
    assert whole["reasoning_content"] == "let me" and whole["refusal"] == "no"


def test_the_experts_of_a_stream_are_kept_and_their_bulk_is_not_passed_on() -> None:
    last = delta(finish="stop")
    last["choices"][0]["routed_experts"] = "AAAA"
    answer = streamed(stream(delta(content="yes"), last))
    assert answer.answer().choices[0].routed_experts == "AAAA"
    assert not any(b"AAAA" in event for event in answer.held)


def test_an_empty_finish_reason_is_none() -> None:
    answer = streamed(stream(*(delta(content="a", finish="") for _ in range(3)), done=False))
    assert not answer.finished and answer.answer().choices[0].finish_reason is None


@pytest.mark.parametrize(
    "event", [b"{", b"5", b'{"choices": 5}', b'{"choices": [{"token_ids": ["a"]}]}', b"[" * 5000]
)
def test_an_event_that_is_no_chunk_is_the_engines_error(event: bytes) -> None:
    with pytest.raises(EngineError):
        streamed(b"data: " + event + b"\n\n")


def test_usage_counts_cached_tokens_once_and_never_guesses() -> None:
    usage = usage_of(
        {
            "prompt_tokens": 100,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 90},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        True,
    )
    assert (usage.input_tokens, usage.cached_input_tokens) == (100, 90)
    assert (usage.output_tokens, usage.reasoning_tokens, usage.reason) == (7, 3, None)
    for odd in (None, {}, {"prompt_tokens": "4"}, {"prompt_tokens": True}, {"prompt_tokens": -1}):
        usage = usage_of(odd, True)
        assert usage.input_tokens is None and usage.output_tokens is None and usage.reason
    assert usage_of({"prompt_tokens": 0, "completion_tokens": 0}, False).output_tokens == 0


def offload(**limits: int) -> Offload:
    return Offload(digest_bytes, **{"text": 2**20, "inline_image": 2**16, **limits})


MESSAGES: list[tuple[dict[str, Any], Message]] = [
    ({"role": "user", "content": None}, Message(role="user")),
    ({"role": "user", "content": ""}, Message(role="user", parts=(Text(text=""),))),
    (
        {"role": "assistant", "reasoning_content": "hm", "content": "a", "refusal": "no"},
        Message(role="assistant", parts=(Reasoning(text="hm"), Text(text="a"), Refusal(text="no"))),
    ),
    (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{bad"}},
                {"id": "d", "type": "custom", "custom": {"name": "g", "input": "x"}},
            ],
        },
        Message(
            role="assistant",
            parts=(
                ToolCall(name="f", arguments="{bad", id="c"),
                Unknown(
                    kind="tool_call",
                    raw={"id": "d", "type": "custom", "custom": {"name": "g", "input": "x"}},
                ),
            ),
        ),
    ),
    (
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
        Message(role="assistant", parts=(Text(text=""), ToolCall(name="f", arguments="{}"))),
    ),
    (
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "ok"}]},
        Message(role="tool", parts=(ToolResult(content="ok", id="c"),)),
    ),
    (
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "AAAA"}},
                {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            ],
        },
        Message(
            role="user",
            name="ann",
            parts=(
                Text(text="see"),
                Image(url="https://a/b.png"),
                Image(url="data:image/png;base64,AAAA", media_type="image/png"),
                File(name="a.pdf", digest=digest_bytes(b"\0\0\0")),
                Unknown(
                    kind="input_audio",
                    raw={"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
                ),
            ),
        ),
    ),
    (
        {"role": "critic", "content": "x", "weight": 2},
        Message(role="critic", parts=(Text(text="x"), Unknown(kind="message.weight", raw=2))),
    ),
]


@pytest.mark.parametrize(("said", "kept"), MESSAGES)
def test_every_part_of_a_message_is_kept(said: dict[str, Any], kept: Message) -> None:
    assert message_of(said, offload()) == kept


def test_what_is_over_the_limit_is_cut_with_its_size_and_digest() -> None:
    text = "é" * 5000
    (part,) = message_of({"role": "user", "content": text}, offload(text=8000)).parts
    assert part == Truncated(kept=text[:2048], size=10_000, digest=digest_bytes(text.encode()))
    call = {"id": "c", "function": {"name": "f", "arguments": text}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    (part,) = message_of(said, offload(text=8000)).parts
    assert isinstance(part, Truncated)
    audio = {"role": "user", "content": [{"type": "input_audio", "input_audio": text}]}
    (part,) = message_of(audio, offload(text=8000)).parts
    assert isinstance(part, Truncated) and part.size > 10_000


@pytest.mark.parametrize("url", ["data:,x", "data:image/png;base64,%%%", "data:", "data:;base64,"])
def test_a_data_url_that_is_odd_is_kept_as_it_is(url: str) -> None:
    said = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    (part,) = message_of(said, offload(inline_image=0)).parts
    assert isinstance(part, Image) and part.digest


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({}, "message.role"),
        ({"role": 5}, "message.role"),
        ({"role": "user", "content": 5}, "message.content"),
        ({"role": "user", "content": [5]}, "message.content[0]"),
        ({"role": "assistant", "tool_calls": {}}, None),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "message.tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "message.tool_calls[0]"),
    ],
)
def test_what_is_no_message_is_named(said: dict[str, Any], field: str | None) -> None:
    if field is None:
        message_of(said, offload())
        return
    with pytest.raises(BadRecord) as caught:
        message_of(said, offload())
    assert caught.value.field == field


@pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not here")
def test_recorded_streams_of_real_providers_are_put_together() -> None:
    seen = 0
    for file in sorted((SHARED / "openai_chat_stream_sse").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            for text in _bodies(json.loads(line)):
                answer = streamed(text.encode())
                assert answer.answer().choices, file
                seen += 1
    assert seen > 3


def _bodies(value: Any) -> list[str]:
    """Every text in `value` that is a stream of events."""
    if isinstance(value, str):
        return [value] if value.startswith("data: ") and '"chat.completion.chunk"' in value else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [body for one in inner for body in _bodies(one)]
