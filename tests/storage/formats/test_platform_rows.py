"""One conversation, as each provider and platform writes it, is the same conversation."""

import copy
import itertools
import json
from typing import Any

import pytest

from flywheel.records import (
    Image,
    Message,
    ModelCall,
    Reasoning,
    Refusal,
    Span,
    ToolResult,
    Unknown,
)
from storage.chunk import recognised
from storage.formats import FORMATS
from storage.formats.openai_stream import merge_chunks
from storage.merge import judged, merge
from tests.storage.formats import platform_rows as given
from tests.storage.formats.platform_rows import OTHERS, ROWS
from tests.storage.formats.reading import held, of_row, said, told


def last(row: Any) -> tuple[Span, ModelCall]:
    spans = [span for span in of_row(row).spans if span.call]
    span = max(spans, key=lambda one: len(one.call.input) if one.call else 0)
    assert span.call is not None
    return span, span.call


def plain(messages: tuple[Message, ...]) -> list[Any]:
    found = []
    for message in messages:
        role, text, calls = told(message)
        results = [(one.id, one.content) for one in message.parts if isinstance(one, ToolResult)]
        ids = [call.id for call in message.tool_calls]
        asked = [(name, json.loads(arguments)) for name, arguments in calls]
        found.append((role, text, list(zip(ids, asked, strict=True)), results))
    return found


EXPECTED = [
    ("system", given.SYSTEM, [], []),
    ("user", given.QUESTION, [], []),
    ("assistant", "", [(id, ("weather", json.loads(one))) for id, one in given.CALLS], []),
    *(("tool", "", [], [(id, given.RESULTS[id])]) for id, _ in given.CALLS),
]


@pytest.mark.parametrize("form", ROWS)
def test_the_conversation_is_the_same_however_it_was_recorded(form: str):
    row = ROWS[form]
    assert recognised(row) == form.split()[0]
    span, call = last(row)
    assert plain(call.input) == EXPECTED
    assert said(call.choices)[0][0] == ("assistant", given.ANSWER, [])
    assert call.model == ("m-2026" if form == "openai_stored" else "m") and not span.error
    if form == "litellm spend log":  # only messages are in its columns
        assert call.tools is None
    else:
        assert call.tools == (given.CHAT_TOOL,)
    if form != "tensorzero":  # says neither
        assert call.choices[0].finish_reason in ("stop", None)
        assert (call.choices[0].finish_reason is None) == (form == "langfuse_ingestion")
        assert (call.usage.input_tokens, call.usage.output_tokens) == (100, 7)
    if form not in ("anthropic_sessions", "litellm spend log"):
        assert (call.sampling.temperature, call.sampling.max_tokens) == (0.5, 50)
    (trace,) = of_row(row).traces.values()
    whole = "view_only" if form == "litellm spend log" else "renderable"
    assert judged(trace).fidelity == whole


@pytest.mark.parametrize("form", [form for form in ROWS if form != "tensorzero"])
def test_cached_tokens_are_inside_of_the_input_in_every_convention(form: str):
    cached = last(ROWS[form])[1].usage.cached_input_tokens
    assert cached == (None if form == "langfuse_ingestion" else 90)


def test_every_row_is_of_one_format_alone():
    for form, row in [*ROWS.items(), *((key, one) for key, rows in OTHERS.items() for one in rows)]:
        known = {name for name, format in FORMATS.items() if format.recognise(row)}
        assert known == {form.split()[0]}, form


def test_junk_is_of_no_platform_and_never_raises():
    for junk in (None, 1, "x", [], [1], {}, {"request": 1}, {"response": []}, {"batch": 1},
                 {"info": 1, "data": 2}, {"object": "list", "data": []}, {"custom_id": 1},
                 {"call_type": 1}, {"context": 1}, {"post": 1}, [["x", 1]],
                 [{"type": 1}]):  # fmt: skip
        for format in FORMATS.values():
            format.recognise(junk)


def merged(*rows: Any) -> list[Span]:
    state: dict[str, Any] = {}
    for row in rows:
        for trace in of_row(row).traces.values():
            state[trace.id] = merge(state.get(trace.id), trace)
    (trace,) = state.values()
    return list(trace.spans)


@pytest.mark.parametrize(
    "parts",
    [
        [given.BATCH_ASKED, given.BATCH_ANSWERED],
        [{"post": [given.POST]}, {"patch": [given.PATCH]}],
        [{"batch": [one]} for one in given.LANGFUSE_BATCH["batch"][:3]],
    ],
    ids=["batch", "langsmith", "langfuse"],
)
def test_parts_in_any_order_and_twice_are_the_one_call(parts: list[Any]):
    for order in itertools.permutations([*parts, parts[0]]):
        (span,) = merged(*order)
        assert span.call is not None
        assert plain(span.call.input) == EXPECTED
        assert span.call.choices[0].message.text == given.ANSWER
        assert span.call.usage.input_tokens == 100 and span.call.tools == (given.CHAT_TOOL,)


def test_two_batches_that_share_an_id_contradict_each_other():
    other = copy.deepcopy(given.BATCH_ASKED)
    other["body"]["messages"][1]["content"] = "something else"
    (span,) = merged(given.BATCH_ASKED, other, given.BATCH_ANSWERED)
    (trace,) = of_row(given.BATCH_ASKED).traces.values()
    level = judged(merge(merge(None, trace), next(iter(of_row(other).traces.values()))))
    assert level.fidelity == "view_only" and span.call is not None
    assert "its parts contradict each other in input" in level.fidelity_reasons


def test_a_failed_batch_answer_says_why():
    for answer in (
        {"custom_id": "r", "response": None, "error": {"code": "batch_expired", "message": "late"}},
        {
            "custom_id": "r",
            "response": {"status_code": 400, "body": {"error": {"message": "late"}}},
        },
        {"custom_id": "r", "result": {"type": "errored", "error": {"message": "late"}}},
    ):
        (span,) = of_row(answer).spans
        assert span.error == "late" and span.call is not None and span.call.choices == ()


def test_a_batch_of_embeddings_is_refused_with_its_address():
    row = {"custom_id": "r", "url": "/v1/embeddings", "body": {"model": "text-embed", "input": "x"}}
    assert of_row(row).rejects == [(None, "asks for /v1/embeddings that is no conversation")]


def test_a_background_response_that_is_polled_is_one_call():
    asked = {"request": given.RESPONSES["request"],
             "response": {**given.RESPONSE, "status": "queued", "output": [], "usage": None,
                          "background": True}}  # fmt: skip
    polls = [
        {"request": "", "response": {**given.RESPONSE, "status": status, "background": True,
                                     **({} if status == "completed" else
                                        {"output": [], "usage": None})}}
        for status in ("in_progress", "completed")
    ]  # fmt: skip
    for order in itertools.permutations([asked, *polls]):
        (span,) = merged(*order)
        assert span.call is not None and plain(span.call.input) == EXPECTED
        assert span.call.choices[0].message.text == given.ANSWER and span.error is None


def test_history_that_the_provider_keeps_is_not_taken_for_the_whole_prompt():
    request = {**given.RESPONSES["request"], "previous_response_id": "resp_0"}
    (trace,) = of_row({**given.RESPONSES, "request": request}).traces.values()
    (span,) = trace.spans
    assert span.call is not None
    assert span.call.input[1].parts == (Unknown(kind="previous_response", raw="resp_0"),)
    assert judged(trace).fidelity == "view_only"


def test_sealed_and_redacted_thoughts_are_kept_as_they_came():
    for row in (given.RESPONSES, given.ANTHROPIC):
        part = last(row)[1].choices[0].message.parts[0]
        assert part == Reasoning(text="", signature="sealed")
    message = {**given.MESSAGE, "content": [{"type": "redacted_thinking", "data": "xx"},
                                            {"type": "thinking", "thinking": "hm",
                                             "signature": "s"}]}  # fmt: skip
    parts = last({**given.ANTHROPIC, "response": message})[1].choices[0].message.parts
    assert parts == (Reasoning(text="", signature="xx"), Reasoning(text="hm", signature="s"))


def test_tools_that_the_provider_runs_are_kept_whole_and_are_no_calls_of_ours():
    search = {"type": "web_search_call", "id": "ws", "status": "completed",
              "action": {"type": "search", "query": "x"}}  # fmt: skip
    response = {**given.RESPONSE, "output": [search, *given.RESPONSE["output"]]}
    choice = last({**given.RESPONSES, "response": response})[1].choices[0]
    assert choice.message.parts[0] == Unknown(kind="web_search_call", raw=search)
    assert choice.finish_reason == "stop" and choice.message.tool_calls == ()
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    message = {**given.MESSAGE, "content": [use, *given.MESSAGE["content"]]}
    choice = last({**given.ANTHROPIC, "response": message})[1].choices[0]
    assert choice.message.parts[0] == Unknown(kind="server_tool_use", raw=use)
    assert choice.message.tool_calls == ()


def test_images_and_documents_go_to_the_raw_store_or_stay_an_address():
    data = "aGVsbG8="
    content = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "document", "title": "t", "source": {"type": "text", "data": "plain words"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
                                        "data": data}},
    ]  # fmt: skip
    request = {**given.ANTHROPIC["request"], "messages": [{"role": "user", "content": content}]}
    found = of_row({**given.ANTHROPIC, "request": request})
    (span,) = found.spans
    assert span.call is not None
    image, linked, text, pdf = span.call.input[1].parts
    assert found.kept[image.digest] == b"hello" and linked == Image(url="https://x/y.png")
    assert found.kept[text.digest] == b"plain words" and text.name == "t"
    assert found.kept[pdf.digest] == b"hello" and pdf.media_type == "application/pdf"
    drawn = {"type": "code_interpreter_call", "id": "ci", "code": "plot()",
             "outputs": [{"type": "image", "url": "data:image/png;base64," + "aGk=" * 400}],
             }  # fmt: skip
    response = {**given.RESPONSE, "output": [drawn, *given.RESPONSE["output"]]}
    found = of_row({**given.RESPONSES, "response": response})
    (span,) = found.spans
    assert span.call is not None
    part = span.call.choices[0].message.parts[0]
    digest = part.raw["outputs"][0]["url"]["digest"]
    assert found.kept[digest].startswith(b"hi")


def test_refusals_are_refusals():
    output = [{"type": "message", "role": "assistant",
               "content": [{"type": "refusal", "refusal": "I won't."}]}]  # fmt: skip
    response = {**given.RESPONSE, "output": output}
    parts = last({**given.RESPONSES, "response": response})[1].choices[0].message.parts
    assert parts == (Refusal(text="I won't."),)
    message = {**given.MESSAGE, "stop_reason": "refusal"}
    span, call = last({**given.ANTHROPIC, "response": message})
    assert call.choices[0].finish_reason == "content_filter"
    assert span.attributes["response.stop_reason"] == "refusal"


def test_an_answer_that_ran_out_of_tokens_is_cut_by_length():
    response = {**given.RESPONSE, "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"}}  # fmt: skip
    assert last({**given.RESPONSES, "response": response})[1].choices[0].finish_reason == "length"
    message = {**given.MESSAGE, "stop_reason": "max_tokens"}
    assert last({**given.ANTHROPIC, "response": message})[1].choices[0].finish_reason == "length"


def test_errors_of_every_api_say_why():
    for row, error in (
        (given.RESPONSES, {"error": {"message": "no such model", "code": "model_not_found"}}),
        (given.RESPONSES, {**given.RESPONSE, "status": "failed", "output": [],
                           "error": {"message": "no such model"}}),
        (given.ANTHROPIC, {"type": "error", "error": {"type": "x", "message": "no such model"}}),
    ):  # fmt: skip
        span, call = last({**row, "response": error, "http_status": 404})
        assert (span.error, call.choices) == ("no such model", ())
        assert span.attributes["http_status"] == 404
        assert call.usage.reason == "not reported" or error.get("usage")


def test_deltas_of_parallel_calls_may_interleave():
    items = [{"type": "function_call", "call_id": f"c{at}", "name": "weather", "arguments": ""}
             for at in (0, 1)]  # fmt: skip
    texts = ['{"city":', '"A"}', '{"city":', '"B"}']
    events = [
        {"type": "response.created", "response": {"id": "r", "object": "response"}},
        *({"type": "response.output_item.added", "output_index": at, "item": item}
          for at, item in enumerate(items)),
        *({"type": "response.function_call_arguments.delta", "output_index": at,
           "delta": texts[one]} for at, one in ((0, 0), (1, 2), (0, 1), (1, 3))),
    ]  # fmt: skip
    calls = last({**given.RESPONSES, "response": events})[1].choices[0].message.tool_calls
    assert [(one.id, json.loads(one.arguments)["city"]) for one in calls] == [
        ("c0", "A"), ("c1", "B")
    ]  # fmt: skip
    blocks: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**given.MESSAGE, "content": []}},
        *({"type": "content_block_start", "index": at,
           "content_block": {"type": "tool_use", "id": f"c{at}", "name": "weather", "input": {}}}
          for at in (0, 1)),
        *({"type": "content_block_delta", "index": at,
           "delta": {"type": "input_json_delta", "partial_json": texts[one]}}
          for at, one in ((0, 0), (1, 2), (0, 1), (1, 3))),
    ]  # fmt: skip
    calls = last({**given.ANTHROPIC, "response": blocks})[1].choices[0].message.tool_calls
    assert [(one.id, json.loads(one.arguments)["city"]) for one in calls] == [
        ("c0", "A"), ("c1", "B")
    ]  # fmt: skip


def test_text_with_line_separators_does_not_cut_a_stream():
    text = "one\u2028two\x85three"
    chunk = {"object": "chat.completion.chunk", "id": "c",
             "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}],
             }  # fmt: skip
    stream = f"data: {json.dumps(chunk, ensure_ascii=False)}\r\n\r\ndata: [DONE]\r\n"
    _, call = last({**given.CHAT, "response": stream})
    assert call.choices[0].message.text == text and call.choices[0].finish_reason == "stop"


def test_captured_streams_are_told_apart_and_what_is_none_is_refused(tmp_path: Any):
    chunks = [{"object": "chat.completion.chunk", "id": id, "choices": [
        {"index": 0, "delta": {"content": text}}]} for id, text in
        (("a", "x"), ("b", "1"), ("a", "y"), ("b", "2"))]  # fmt: skip
    path = tmp_path / "capture.jsonl"
    rows = [*chunks, *given.ANTHROPIC_EVENTS, *given.RESPONSES_EVENTS, {"z": 1}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found = held(path)
    texts = {call.choices[0].message.text for call in found.calls}
    assert texts == {"xy", "12", given.ANSWER} and len(found.traces) == 4
    assert [reason for _, reason in found.rejects] == ["is no event of a stream"]
    raw = tmp_path / "capture.sse"
    raw.write_text("".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n"
                           for one in given.ANTHROPIC_EVENTS))  # fmt: skip
    (call,) = held(raw).calls
    assert call.choices[0].message.text == given.ANSWER and call.usage.output_tokens == 7


def test_a_page_of_stored_answers_is_its_answers():
    found = of_row(OTHERS["openai_stored"][0])
    assert {trace.source for trace in found.traces.values()} == {
        "import:openai_chat", "import:openai_responses"
    }  # fmt: skip
    assert found.unmapped["has_more"] == 1


def test_answers_from_a_cache_cost_nothing_and_keep_their_tokens():
    call = last(given.SPEND_LOG)[1]
    assert (call.cached, call.cost_usd, call.usage.input_tokens) == (True, 0.0, 100)
    call = last(given.LITELLM)[1]
    assert (call.cached, call.cost_usd) == (None, 0.25)


def test_people_conversations_and_verdicts_are_found():
    (trace,) = of_row(ROWS["langsmith"]).traces.values()
    assert (trace.user, trace.conversation) == ("ann", "talk")
    found = of_row(given.LANGFUSE_BATCH)
    (trace,) = found.traces.values()
    assert (trace.user, trace.conversation) == ("ann", "talk")
    (score,) = found.feedback
    assert (score.name, score.value, score.target) == ("good", True, trace.id)
    found = of_row(given.MLFLOW)
    (verdict,) = found.feedback
    assert (verdict.name, verdict.value, verdict.by) == ("good", True, "bob")
    tool = next(span for span in found.spans if span.kind == "tool")
    assert tool.error == "no such city" and tool.parents == ("0000000000000001",)
    (verdict,) = of_row(OTHERS["langsmith"][2]).feedback
    assert (verdict.target, verdict.target_kind, verdict.value) == (given.RUN, "span", 1)
    metric, shown, comment = (of_row(row).feedback[0] for row in OTHERS["tensorzero"][:3])
    assert (metric.name, metric.value, metric.at) == ("good", True, 1_735_941_067_019_000_000)
    assert shown.kind == "demonstration" and shown.value == [{"type": "text", "text": "x"}]
    assert (comment.name, comment.value, comment.target_kind) == ("comment", "nice", "trace")


def test_what_a_template_was_filled_with_is_not_taken_for_the_prompt():
    row = {**given.TENSORZERO, "input": json.dumps({"system": {"secret": "bat"}, "messages": []})}
    (trace,) = of_row(row).traces.values()
    assert judged(trace).fidelity == "view_only"
    assert any("template" in reason for reason in judged(trace).fidelity_reasons)


def test_langchain_messages_are_read_in_every_form():
    def made(name: str, **kwargs: Any) -> dict[str, Any]:
        return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", name],
                "kwargs": kwargs}  # fmt: skip

    inputs = {"messages": [[
        made("SystemMessage", content=given.SYSTEM), made("HumanMessage", content=given.QUESTION),
        made("AIMessage", content="", additional_kwargs={
            "tool_calls": given.CHAT_MESSAGES[2]["tool_calls"]}),
        *(made("ToolMessage", content=given.RESULTS[id], tool_call_id=id) for id, _ in given.CALLS),
    ]]}  # fmt: skip
    outputs = {"generations": [[{
        "text": given.ANSWER, "generation_info": {"finish_reason": "stop"},
        "message": made("AIMessage", content=given.ANSWER, usage_metadata={
            "input_tokens": 100, "output_tokens": 7, "total_tokens": 107}),
    }]], "llm_output": {"model_name": "m-2026"}}  # fmt: skip
    run = {**given.POST, "inputs": inputs, "outputs": outputs, "end_time": "2026-10-01T00:00:02Z",
           "extra": {"invocation_params": {"model": "m", "temperature": 0.5,
                                           "tools": [given.CHAT_TOOL]}}}  # fmt: skip
    _, call = last(run)
    assert plain(call.input) == EXPECTED
    assert said(call.choices) == [(("assistant", given.ANSWER, []), "stop")]
    assert (call.model, call.response_model, call.usage.input_tokens) == ("m", "m-2026", 100)
    assert call.tools == (given.CHAT_TOOL,) and call.sampling.temperature == 0.5


def test_a_long_session_does_not_repeat_its_history_in_every_call():
    create, sent, user, *_ = given.SESSION
    stream = "client.beta.sessions.events.stream"
    rows = [create, sent, user]
    for at in range(200):
        rows += [
            [stream, {"type": "span.model_request_start", "id": f"s{at}"}],
            [stream, {"type": "agent.message", "content": [{"type": "text", "text": str(at)}]}],
            [stream, {"type": "span.model_request_end", "id": f"e{at}", "model_usage": {}}],
        ]
    calls = [span for span in of_row(rows).spans if span.call]
    assert len(calls) == 200
    assert sum(len(span.call.input) for span in calls if span.call) == 201
    assert calls[0].attributes["input_not_repeated"] == 2


def test_pieces_of_a_stream_leave_the_row_as_it_came():
    chunks = [
        {"object": "chat.completion.chunk", "id": "c", "choices": [
            {"index": 0, "delta": {"content": text, "annotations": [text]},
             "logprobs": {"content": [{"token": text, "logprob": -1.0}]}, "token_ids": [at]}]}
        for at, text in enumerate(("a", "b", "c"))
    ]  # fmt: skip
    before = copy.deepcopy(chunks)
    merged_chunks = merge_chunks(chunks)
    assert chunks == before
    (choice,) = merged_chunks["choices"]
    assert choice["message"] == {"content": "abc", "annotations": ["a", "b", "c"]}
    assert choice["token_ids"] == [0, 1, 2] and len(choice["logprobs"]["content"]) == 3
