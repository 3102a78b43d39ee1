"""Real files of providers and observability platforms, every one of them: what each holds, what its
source states of itself, and that one conversation is the same however it was recorded. Skipped
without ../shared."""

import base64
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from flywheel.records import Span, ToolResult
from storage.merge import merge
from tests.storage.formats.reading import Held, held, of_row, told

FOLDERS = (
    "openai_chat_logs", "openai_chat_stream_sse", "openai_responses", "openai_responses_stream",
    "anthropic_messages", "anthropic_messages_stream", "otlp_json", "openinference",
    "langfuse_export", "langfuse_ingestion", "langsmith_runs", "langsmith_anthropic_managed",
    "mlflow_trace", "litellm", "tensorzero",
)  # fmt: skip


class Expected(NamedTuple):
    format: str
    """Of its rows; "" = of none."""
    rows: int
    """Rows understood."""
    traces: int = 0
    spans: int = 0
    renderable: int = 0
    """Traces that can be turned into tokens."""
    feedback: int = 0
    rejects: int = 0
    reason: str = ""
    """Part of the reason of each reject."""


CHAT, RESPONSES, ANTHROPIC = "openai_chat", "openai_responses", "anthropic"
KEY = Expected("", 0, rejects=1, reason="is of no known format")
"""An answer key beside a Langfuse trace: it is no trace itself."""
ONE = Expected("langsmith", 1, 1, 1, 1)
TABLE: dict[str, Expected] = {
    "openai_chat_logs/nvidia_chat_completion.json": Expected(CHAT, 3, 3, 3, 3),
    "openai_chat_logs/openinference-1.jsonl": Expected(CHAT, 7, 7, 7, 6),
    "openai_chat_logs/openllmetry-1.jsonl": Expected(CHAT, 18, 16, 16, 13),
    "openai_chat_logs/openllmetry-2.jsonl": Expected(CHAT, 18, 18, 18, 18),
    "openai_chat_logs/openllmetry-4.jsonl": Expected(CHAT, 18, 18, 18, 12),
    "openai_chat_logs/openllmetry-5.jsonl": Expected(CHAT, 18, 18, 18, 18),
    "openai_chat_logs/opentelemetry-python-contrib-1.jsonl": Expected(CHAT, 7, 6, 7, 5),
    "openai_chat_logs/opentelemetry-python-contrib-2.jsonl": Expected(CHAT, 7, 7, 7, 6),
    "openai_chat_logs/opentelemetry-python-contrib-4.jsonl": Expected(CHAT, 5, 3, 4, 3),
    "openai_chat_logs/pydantic-ai-1.jsonl": Expected(CHAT, 18, 18, 18, 17),
    "openai_chat_logs/pydantic-ai-2.jsonl": Expected(CHAT, 18, 18, 18, 17),
    "openai_chat_logs/pydantic-ai-4.jsonl": Expected(CHAT, 18, 16, 16, 15),
    "openai_chat_logs/pydantic-ai-5.jsonl": Expected(CHAT, 18, 17, 18, 17),
    "openai_chat_stream_sse/openllmetry-1.jsonl": Expected(CHAT, 8, 8, 8, 8),
    "openai_chat_stream_sse/openllmetry-2.jsonl": Expected(CHAT, 8, 7, 7, 7),
    "openai_chat_stream_sse/openllmetry-4.jsonl": Expected(CHAT, 8, 8, 8, 8),
    "openai_chat_stream_sse/openllmetry-5.jsonl": Expected(CHAT, 4, 4, 4, 4),
    "openai_chat_stream_sse/opentelemetry-python-contrib-1.jsonl": Expected(CHAT, 7, 6, 6, 6),
    "openai_chat_stream_sse/pydantic-ai-1.jsonl": Expected(CHAT, 6, 6, 6, 6),
    "openai_chat_stream_sse/pydantic-ai-2.jsonl": Expected(CHAT, 6, 6, 6, 5),
    "openai_chat_stream_sse/tensorzero_chat_completions_example.json": Expected(CHAT, 1, 1, 1),
    "openai_chat_stream_sse/tensorzero_chat_completions_function_example.json": Expected(
        CHAT, 1, 1, 1
    ),
    "openai_chat_stream_sse/tensorzero_chat_completions_streaming_example.jsonl": Expected(
        "streams", 1, 1, 1
    ),
    "openai_chat_stream_sse/tensorzero_chat_completions_streaming_function_example.jsonl": Expected(
        "streams", 1, 1, 1
    ),
    "openai_responses/openllmetry-1.jsonl": Expected(RESPONSES, 7, 7, 7, 7),
    "openai_responses/openllmetry-2.jsonl": Expected(RESPONSES, 7, 7, 7, 7),
    "openai_responses/opentelemetry-python-contrib-1.jsonl": Expected(RESPONSES, 6, 6, 6, 5),
    "openai_responses/pydantic-ai-1.jsonl": Expected(RESPONSES, 27, 20, 20, 18),
    "openai_responses/pydantic-ai-2.jsonl": Expected(RESPONSES, 27, 21, 27, 9),
    "openai_responses/pydantic-ai-4.jsonl": Expected(RESPONSES, 27, 27, 27, 15),
    "openai_responses/pydantic-ai-5.jsonl": Expected(RESPONSES, 27, 27, 27, 23),
    "openai_responses_stream/openllmetry-1.jsonl": Expected(RESPONSES, 7, 7, 7, 7),
    "openai_responses_stream/opentelemetry-python-contrib-1.jsonl": Expected(RESPONSES, 5, 5, 5, 5),
    "openai_responses_stream/pydantic-ai-1.jsonl": Expected(RESPONSES, 7, 6, 6, 4),
    "openai_responses_stream/pydantic-ai-2.jsonl": Expected(RESPONSES, 7, 7, 7, 1),
    "openai_responses_stream/pydantic-ai-4.jsonl": Expected(RESPONSES, 4, 4, 4, 3),
    "anthropic_messages/openinference-1.jsonl": Expected(ANTHROPIC, 7, 7, 7, 7),
    "anthropic_messages/openinference-2.jsonl": Expected(ANTHROPIC, 7, 7, 7, 7),
    "anthropic_messages/openllmetry-1.jsonl": Expected(ANTHROPIC, 7, 7, 7, 7),
    "anthropic_messages/pydantic-ai-1.jsonl": Expected(ANTHROPIC, 22, 22, 22, 9),
    "anthropic_messages/pydantic-ai-2.jsonl": Expected(ANTHROPIC, 22, 22, 22, 6),
    "anthropic_messages/pydantic-ai-4.jsonl": Expected(ANTHROPIC, 22, 22, 22, 16),
    "anthropic_messages/pydantic-ai-5.jsonl": Expected(ANTHROPIC, 22, 22, 22, 21),
    "anthropic_messages_stream/openllmetry-1.jsonl": Expected(ANTHROPIC, 8, 8, 8, 8),
    "anthropic_messages_stream/pydantic-ai-1.jsonl": Expected(ANTHROPIC, 7, 7, 7, 2),
    "otlp_json/openinference-otlp.otlp.json": Expected("otlp", 1, 48, 85, 36),
    "otlp_json/openllmetry-0.40.14-indexed-attrs.otlp.json": Expected("otlp", 1, 36, 61, 24),
    "otlp_json/openllmetry-0.62.4-input-messages.otlp.json": Expected("otlp", 1, 48, 85, 36),
    "otlp_json/otel-openai-v2-events.logs.json": Expected("otlp", 1, 33, 59, 21),
    "otlp_json/otel-openai-v2-events.otlp.json": Expected("otlp", 1, 26, 51, 0),
    "openinference/oi-spans.parquet": Expected("openinference", 85, 30, 85, 23),
    "openinference/oi-spans.sdk.jsonl": Expected("openinference", 90, 34, 90, 25),
    "langfuse_export/agno-2025-06-11.chatml.json": KEY,
    "langfuse_export/agno-2025-06-11.trace.json": Expected("langfuse", 1, 1, 6, 1),
    "langfuse_export/autogen-2025-06-06.chatml.json": KEY,
    "langfuse_export/autogen-2025-06-06.trace.json": Expected("langfuse", 1, 1, 2, 1),
    "langfuse_export/claude-agent-2025-12-22.chatml.json": KEY,
    "langfuse_export/claude-agent-2025-12-22.trace.json": Expected("langfuse", 1, 1, 7, 0, 3),
    "langfuse_export/crewai-2025-07-11.chatml.json": KEY,
    "langfuse_export/crewai-2025-07-11.trace.json": Expected("langfuse", 1, 1, 6, 1, 2),
    "langfuse_export/google-adk-2025-08-28.chatml.json": KEY,
    "langfuse_export/google-adk-2025-08-28.trace.json": Expected("langfuse", 1, 1, 5, 1, 2),
    "langfuse_export/google-gemini-2025-08-01.chatml.json": KEY,
    "langfuse_export/google-gemini-2025-08-01.trace.json": Expected("langfuse", 1, 1, 1, 1, 2),
    "langfuse_export/langgraph-js-2025-10-30.chatml.json": KEY,
    "langfuse_export/langgraph-js-2025-10-30.trace.json": Expected("langfuse", 1, 1, 20, 0, 2),
    "langfuse_export/langgraph-python-2025-08-22.chatml.json": KEY,
    "langfuse_export/langgraph-python-2025-08-22.trace.json": Expected("langfuse", 1, 1, 9, 1, 2),
    "langfuse_export/microsoft-agent-2025-12-17.chatml.json": KEY,
    "langfuse_export/microsoft-agent-2025-12-17.trace.json": Expected("langfuse", 1, 1, 4, 1, 3),
    "langfuse_export/openai-agents-2025-09-30.chatml.json": KEY,
    "langfuse_export/openai-agents-2025-09-30.trace.json": Expected("langfuse", 1, 1, 5, 0, 2),
    "langfuse_export/pydantic-ai-tools-2025-06-06.chatml.json": KEY,
    "langfuse_export/pydantic-ai-tools-2025-06-06.trace.json": Expected("langfuse", 1, 1, 3, 1, 1),
    "langfuse_export/pydantic-ai-tools-2025-12-04.chatml.json": KEY,
    "langfuse_export/pydantic-ai-tools-2025-12-04.trace.json": Expected("langfuse", 1, 1, 12, 0),
    "langfuse_export/vercel-aisdk-2025-11-17.chatml.json": KEY,
    "langfuse_export/vercel-aisdk-2025-11-17.trace.json": Expected("langfuse", 1, 1, 3, 0, 2),
    "langfuse_export/vertex-ai-2025-08-01.chatml.json": KEY,
    "langfuse_export/vertex-ai-2025-08-01.trace.json": Expected("langfuse", 1, 1, 1, 1, 2),
    "langfuse_ingestion/completion_with_no_choices.json": Expected("langfuse_ingestion", 1, 1, 1),
    "langsmith_runs/langsmith_js_wrap_openai_default.json": ONE,
    "langsmith_runs/langsmith_js_wrap_openai_reasoning.json": ONE,
    "langsmith_runs/langsmith_js_wrap_openai_stream_no usage.json": ONE,
    "langsmith_runs/langsmith_py_wrap_openai_.json": ONE,
    "langsmith_runs/langsmith_py_wrap_openai_stream.json": ONE,
    "langsmith_runs/langsmith_py_wrap_openai_stream_no_usage.json": ONE,
    "langsmith_runs/outputs.jsonl": Expected("langsmith", 7, 7, 7, rejects=5, reason="is "),
    "langsmith_anthropic_managed/anthropic_managed_builtin_tools.jsonl": Expected(
        "anthropic_sessions", 1, 1, 3
    ),
    "langsmith_anthropic_managed/anthropic_managed_custom_tools.jsonl": Expected(
        "anthropic_sessions", 1, 1, 3
    ),
    "langsmith_anthropic_managed/anthropic_managed_mcp_tools_reject.jsonl": Expected(
        "anthropic_sessions", 1, 1, 5
    ),
    "mlflow_trace/mlflow-traces-1.json": Expected("mlflow", 7, 7, 21, 4),
    "mlflow_trace/mlflow-traces-2.json": Expected("mlflow", 7, 7, 19, 5),
    "mlflow_trace/one-trace.json": Expected("mlflow", 1, 1, 5, 1),
    "litellm/gcs_standard_logging_payload.json": Expected("litellm", 1, 1, 1, 1),
    "tensorzero/boolean_metric_feedback_examples.jsonl": Expected(
        "tensorzero", 1740, feedback=1740
    ),
    "tensorzero/chat_datapoint_fixture.jsonl": Expected("tensorzero", 41, 41, 41, 2),
    "tensorzero/chat_inference_datapoint_examples.jsonl": Expected("tensorzero", 198, 198, 198, 26),
    "tensorzero/chat_inference_examples.jsonl": Expected("tensorzero", 344, 26, 344, 1),
    "tensorzero/comment_feedback_examples.jsonl": Expected("tensorzero", 27, feedback=27),
    "tensorzero/float_metric_feedback_examples.jsonl": Expected("tensorzero", 1546, feedback=1546),
    "tensorzero/json_inference_examples.jsonl": Expected("tensorzero", 263, 21, 263),
    "tensorzero/tag_inference_examples.jsonl": Expected(
        "", 0, rejects=1443, reason="the index of tags"
    ),
}

Read = Callable[[str], Held]


@pytest.fixture(scope="module")
def files(request: pytest.FixtureRequest) -> Read:
    """What a file of the shared folder holds; each is read once."""
    folder = Path(__file__).resolve().parents[3].parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("no ../shared/traces beside this checkout")
    known: dict[str, Held] = {}

    def one(name: str) -> Held:
        if name not in known:
            if not (folder / name).exists():
                pytest.skip(f"no {name}")
            known[name] = held(folder / name)
        return known[name]

    return one


def test_every_file_of_these_folders_has_its_expectation(shared: Path):
    there = {
        f"{folder}/{path.name}"
        for folder in FOLDERS
        if (shared / folder).is_dir()
        for path in (shared / folder).iterdir()
    }
    assert there <= TABLE.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_file_gives_what_it_holds(files: Read, name: str):
    found, expected = files(name), TABLE[name]
    assert set(found.formats) - {"chat_rows"} == ({expected.format} if expected.format else set())
    assert (sum(found.formats.values()), len(found.traces), len(found.spans)) == (
        expected.rows, expected.traces, expected.spans
    )  # fmt: skip
    assert found.fidelity()["renderable"] == expected.renderable
    assert (len(found.feedback), len(found.rejects)) == (expected.feedback, expected.rejects)
    for _, reason in found.rejects:
        assert expected.reason in reason and "has a shape that" not in reason


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def only(row: Any) -> Span:
    (span,) = of_row(row).spans
    return span


def test_responses_state_what_we_hold(shared: Path):
    compared = 0
    for path in sorted((shared / "openai_responses").glob("*.jsonl")):
        for row in rows(path):
            response = row["response"]
            if response.get("object") != "response" or not response.get("output"):
                continue
            call = only(row).call
            assert call is not None
            (choice,) = call.choices
            made = [
                (one["call_id"], one["name"], one["arguments"])
                for one in response["output"]
                if one["type"] == "function_call"
            ]
            assert [(one.id, one.name, one.arguments) for one in choice.message.tool_calls] == made
            text = "".join(
                part["text"]
                for one in response["output"]
                if one["type"] == "message"
                for part in one["content"]
                if part["type"] == "output_text"
            )
            assert choice.message.text == text
            assert choice.finish_reason == ("tool_calls" if made else "stop")
            used = response["usage"]
            if used and not used["total_tokens"]:  # zeros beside an answer are no count
                assert call.usage.input_tokens is None and call.usage.reason
            elif used:
                assert (call.usage.input_tokens, call.usage.output_tokens) == (
                    used["input_tokens"], used["output_tokens"]
                )  # fmt: skip
                assert (
                    call.usage.cached_input_tokens == used["input_tokens_details"]["cached_tokens"]
                )
                said = used["output_tokens_details"]["reasoning_tokens"]
                assert call.usage.reasoning_tokens == said
            compared += 1
    assert compared > 110


def events(text: str) -> list[Any]:
    return [json.loads(line[5:]) for line in text.split("\n") if line.startswith("data: {")]


def test_a_streamed_response_is_what_its_last_event_says_and_a_cut_one_what_came(shared: Path):
    compared = 0
    for path in sorted((shared / "openai_responses_stream").glob("*.jsonl")):
        for row in rows(path):
            found = events(row["response"])
            whole = found[-1]["response"]
            streamed = only(row).call
            plain = only({**row, "response": whole}).call
            assert streamed == plain and streamed is not None and streamed.usage.input_tokens
            cut = only({**row, "response": found[:-1]})
            assert cut.call is not None and cut.call.usage.input_tokens is None
            (choice,) = cut.call.choices
            assert told(choice.message) == told(streamed.choices[0].message)
            assert choice.finish_reason is None and cut.error
            deltas = only({**row, "response": [one for one in found if "done" not in one["type"]
                                               and "completed" not in one["type"]]})  # fmt: skip
            assert deltas.call is not None
            told_of = [told(one.message) for one in deltas.call.choices]
            assert told_of == [told(streamed.choices[0].message)]
            compared += 1
    assert compared == 30


def test_anthropic_states_what_we_hold_with_cached_tokens_inside(shared: Path):
    ended = {"end_turn": "stop", "tool_use": "tool_calls"}
    compared = 0
    for path in sorted((shared / "anthropic_messages").glob("*.jsonl")):
        for row in rows(path):
            response = row["response"]
            if isinstance(response, str) or response["type"] == "error":
                continue
            call = only(row).call
            assert call is not None
            (choice,) = call.choices
            made = [(one["id"], one["name"], one["input"]) for one in response["content"]
                    if one["type"] == "tool_use"]  # fmt: skip
            assert [(one.id, one.name, json.loads(one.arguments))
                    for one in choice.message.tool_calls] == made  # fmt: skip
            assert choice.message.text == "".join(
                one["text"] for one in response["content"] if one["type"] == "text"
            )
            assert choice.finish_reason == ended[response["stop_reason"]]
            used = response["usage"]
            cached = used.get("cache_read_input_tokens") or 0
            created = used.get("cache_creation_input_tokens") or 0
            assert call.usage.input_tokens == used["input_tokens"] + cached + created
            assert call.usage.output_tokens == used["output_tokens"]
            assert (call.usage.cached_input_tokens or 0) == cached
            asked = sum(
                part.get("type") == "tool_result"
                for message in row["request"]["messages"]
                for part in message["content"]
                if isinstance(message["content"], list)
            )
            assert sum(message.role == "tool" for message in call.input) == asked
            compared += 1
    assert compared == 104


def test_a_streamed_message_is_its_deltas_and_a_cut_one_has_no_count_of_its_output(shared: Path):
    compared = 0
    for path in sorted((shared / "anthropic_messages_stream").glob("*.jsonl")):
        for row in rows(path):
            found = events(row["response"])
            call = only(row).call
            assert call is not None
            (choice,) = call.choices
            deltas = [one["delta"] for one in found if one["type"] == "content_block_delta"]
            assert choice.message.text == "".join(one.get("text", "") for one in deltas)
            last = next(one for one in found if one["type"] == "message_delta")
            assert call.usage.output_tokens == last["usage"]["output_tokens"]
            cut = only({**row, "response": [one for one in found if one is not last]})
            assert cut.call is not None and cut.call.choices[0].message == choice.message
            assert cut.call.usage.output_tokens is None and cut.call.usage.input_tokens
            assert cut.call.choices[0].finish_reason is None and cut.error
            compared += 1
    assert compared == 15


def test_mlflow_states_the_tokens_and_the_cost_of_each_trace(shared: Path):
    compared = 0
    for name in ("mlflow-traces-1.json", "mlflow-traces-2.json"):
        for row in json.loads((shared / "mlflow_trace" / name).read_text()):
            about = row["info"]["trace_metadata"]
            (trace,) = of_row(row).traces.values()
            calls = [span.call for span in trace.spans if span.call and span.call.choices]
            assert (trace.external_id, len(trace.spans)) == (
                row["info"]["trace_id"], len(row["data"]["spans"])
            )  # fmt: skip
            if "mlflow.trace.tokenUsage" in about:
                used = json.loads(about["mlflow.trace.tokenUsage"])
                stated = [one for one in calls if one.usage.input_tokens is not None]
                assert sum(one.usage.input_tokens or 0 for one in stated) == used["input_tokens"]
                assert sum(one.usage.output_tokens or 0 for one in stated) == used["output_tokens"]
                compared += 1
            if "mlflow.trace.cost" in about:
                cost = json.loads(about["mlflow.trace.cost"])["total_cost"]
                assert sum(one.cost_usd or 0 for one in calls) == pytest.approx(cost)
    assert compared >= 10


def test_langsmith_runs_are_whole_whichever_half_comes_first(shared: Path):
    stated = {
        "js_wrap_openai_default": (9, 9, 0), "js_wrap_openai_reasoning": (43, 1901, 960),
        "js_wrap_openai_stream_no usage": (None, None, None), "py_wrap_openai_": (9, 9, 0),
        "py_wrap_openai_stream": (9, 9, 0), "py_wrap_openai_stream_no_usage": (None, None, None),
    }  # fmt: skip
    for name, (given, output, reasoning) in stated.items():
        row = json.loads((shared / "langsmith_runs" / f"langsmith_{name}.json").read_text())
        span = only(row)
        call = span.call
        assert call is not None and span.start and span.end and not span.error
        used = call.usage
        assert (used.input_tokens, used.output_tokens, used.reasoning_tokens) == (
            given, output, reasoning
        )  # fmt: skip
        assert call.choices[0].finish_reason == "stop" and call.choices[0].message.text
        halves = [of_row({key: row[key]}).traces for key in ("patch", "post")]
        (patch,), (post,) = (list(one.values()) for one in halves)
        for first, second in ((patch, post), (post, patch)):
            assert merge(merge(None, first), second).spans[0].call == call


def test_langfuse_ingestion_keeps_the_cost_that_stands_with_the_usage(files: Read):
    (span,) = files("langfuse_ingestion/completion_with_no_choices.json").spans
    assert span.call is not None and span.start is not None and span.end is not None
    assert (span.call.usage.input_tokens, span.call.usage.output_tokens) == (10, 10)
    assert span.call.cost_usd == pytest.approx(2e-05)
    assert span.call.choices == () and span.call.input[0].text == "Hello!"
    assert span.start == 1_738_887_807_220_129_000  # 16:23 in -08:00


def test_litellm_states_the_call(files: Read):
    (span,) = files("litellm/gcs_standard_logging_payload.json").spans
    assert span.call is not None
    assert (span.call.usage.input_tokens, span.call.usage.output_tokens) == (10, 20)
    assert span.call.cost_usd == pytest.approx(0.000225)
    assert span.call.choices[0].message.text == "hi"
    assert span.call.input[0].text == "Hello, world!"


def test_sessions_of_managed_agents_state_calls_tools_and_tokens(shared: Path, files: Read):
    for path in sorted((shared / "langsmith_anthropic_managed").glob("*.jsonl")):
        found = files(f"langsmith_anthropic_managed/{path.name}")
        stated = [one[1] for one in rows(path) if "stream" in one[0]]
        ends = [one["model_usage"] for one in stated if one["type"] == "span.model_request_end"]
        used = [
            (call.usage.input_tokens, call.usage.output_tokens)
            for call in sorted(found.calls, key=lambda call: len(call.input))
        ]
        assert used == [
            (
                one["input_tokens"] + one["cache_read_input_tokens"]
                + one["cache_creation_input_tokens"], one["output_tokens"],
            )
            for one in ends
        ]  # fmt: skip
        uses = [one for one in stated if one["type"].endswith("tool_use")]
        tools = [span for span in found.spans if span.kind == "tool"]
        assert Counter(span.name for span in tools) == Counter(one["name"] for one in uses)
        assert all(span.result is not None and span.parents for span in tools)


def test_tensorzero_states_episodes_templates_and_verdicts(shared: Path, files: Read):
    path = shared / "tensorzero" / "chat_inference_examples.jsonl"
    stated = rows(path)
    found = files("tensorzero/chat_inference_examples.jsonl")
    assert {trace.external_id for trace in found.traces.values()} == {
        row["episode_id"] for row in stated
    }
    spans = {span.id: span for span in found.spans}
    for row in stated:
        span = spans[row["id"]]
        assert span.call is not None and span.start is not None and span.end is not None
        (text,) = json.loads(row["output"])
        assert span.call.choices[0].message.text == text["text"]
        assert (span.end - span.start) // 1_000_000 == row["processing_time_ms"]
    for name in ("boolean_metric", "float_metric"):
        said = files(f"tensorzero/{name}_feedback_examples.jsonl").feedback
        wanted = rows(shared / "tensorzero" / f"{name}_feedback_examples.jsonl")
        assert [(one.target, one.name, one.value) for one in said] == [
            (row["target_id"], row["metric_name"], row["value"]) for row in wanted
        ]


def spoken(found: Held) -> dict[str, Any]:
    """By response id: roles, texts, calls with their arguments' value, finish reasons."""
    conversations = {}
    for span in found.spans:
        named = span.attributes.get("gen_ai.response.id") or span.attributes.get("response_id")
        beside = span.attributes.get("output.value")
        if named is None and isinstance(beside, str) and beside.startswith("{"):
            named = json.loads(beside).get("id")
        if not span.call or not named or not span.call.choices or not span.call.input:
            continue

        def words(message: Any) -> Any:
            role, text, made = told(message)
            if role == "tool":
                text = "".join(one.content for one in message.parts if isinstance(one, ToolResult))
            return role, text, [(name, json.loads(asked)) for name, asked in made]

        conversations[str(named)] = (
            [words(message) for message in span.call.input],
            [(words(one.message), one.finish_reason) for one in span.call.choices],
        )
    return conversations


LOST = {
    ("indexed", "chatcmpl-AC7YAG2uy8c4VfbqJp4QkdHc5PDZ4"),  # no content of image prompts
    ("mlflow", "chatcmpl-9Xtj47S36iWNBARmBocBaifGBbjtw"),  # no calls of this stream
}
"""What a recorder itself left out."""


def test_one_conversation_is_the_same_in_every_format(shared: Path, files: Read):
    sources = {
        "api": [f"{folder}/*" for folder in FOLDERS[:6]],
        "newest": ["otlp_json/openllmetry-0.62*"],
        "indexed": ["otlp_json/openllmetry-0.40*"],
        "events": ["otlp_json/otel-*"],
        "openinference": ["otlp_json/openinference*"],
        "sdk": ["openinference/*.jsonl"],
        "table": ["openinference/*.parquet"],
        "mlflow": ["mlflow_trace/*"],
    }
    said = {
        name: spoken(held(*(path for one in globs for path in sorted(shared.glob(one)))))
        for name, globs in sources.items()
    }
    compared: Counter[str] = Counter()
    for first in said:
        for second in said:
            for named in said[first].keys() & said[second].keys():
                if first < second and not {(first, named), (second, named)} & LOST:
                    assert said[first][named] == said[second][named], (first, second, named)
                    compared[first] += 1
                    compared[second] += 1
    assert all(compared[name] >= 80 for name in sources), compared


def _words(content: Any) -> str:
    if isinstance(content, list):
        return "".join(
            one.get("text", "") for one in content
            if isinstance(one, dict) and one.get("type", "text").endswith("text")
        )  # fmt: skip
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)


def _expected(message: dict[str, Any]) -> Any:
    made = [(one["name"], json.loads(one["arguments"])) for one in message.get("tool_calls") or ()]
    content = message.get("content")
    if isinstance(content, list):
        made += [(one["name"], one["input"]) for one in content if one.get("type") == "tool_use"]
    role = {"model": "assistant"}.get(message.get("role", ""), message.get("role"))
    return role, _words(content), made


@pytest.mark.parametrize("name", [one for one in TABLE if one.startswith("otlp_json/")])
def test_protobuf_of_every_generation_is_what_its_json_is(
    shared: Path, files: Read, tmp_path: Path, name: str
):
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    said = _base64_ids(json.loads((shared / name).read_text()))
    kind = TracesData if "resourceSpans" in said else LogsData
    path = tmp_path / "export.pb"
    path.write_bytes(ParseDict(said, kind(), ignore_unknown_fields=True).SerializeToString())
    found, expected = held(path), files(name)
    assert not found.rejects and found.traces.keys() == expected.traces.keys()
    for id, trace in expected.traces.items():
        assert list(map(_plainly, found.traces[id].spans)) == list(map(_plainly, trace.spans))


def _base64_ids(value: Any) -> Any:
    """Ids as protobuf's own JSON has them; OTLP's has them in hex."""
    if isinstance(value, list):
        return [_base64_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        key: base64.b64encode(bytes.fromhex(one)).decode() if key in ids else _base64_ids(one)
        for key, one in value.items()
    }


def _plainly(span: Span) -> Span:
    numbered = ("kind", "log.severityNumber")  # by name in the one, by number in the other
    kept = {key: one for key, one in span.attributes.items() if key not in numbered}
    return msgspec.structs.replace(span, attributes=kept)


def test_langfuse_generations_are_what_its_authors_expect(shared: Path, files: Read):
    differs = {
        # Messages that stand as Python's repr: they hold only their tools as JSON.
        ("b38a82eaa62b551e", "input"), ("ca136de468e156c9", "input"),
        # The result of a function is the tool's message here, the user's there.
        ("bded677884f031ce", "input"),
        # Expected is nothing, though the answer stands there.
        ("5cb389a3bdd21a6e", "output"),
    }  # fmt: skip
    compared = 0
    for path in sorted((shared / "langfuse_export").glob("*.chatml.json")):
        found = files(f"langfuse_export/{path.name.replace('chatml', 'trace')}")
        spans = {span.id: span for span in found.spans}
        for id, sides in json.loads(path.read_text()).items():
            call = spans[id].call
            for side, stated in sides.items():
                if not stated.get("success") or call is None or (id, side) in differs:
                    continue
                ours = call.input if side == "input" else [one.message for one in call.choices]
                seen = []
                for message in ours:
                    role, text, made = told(message)
                    if not text:
                        text = "".join(
                            one.content for one in message.parts if isinstance(one, ToolResult)
                        )
                    seen.append((role, text, [(name, json.loads(asked)) for name, asked in made]))
                wanted = [_expected(one) for one in stated["data"]
                          if "role" in one or "content" in one]  # fmt: skip
                assert seen == wanted, (path.name, id, side)
                compared += 1
    assert compared == 42
