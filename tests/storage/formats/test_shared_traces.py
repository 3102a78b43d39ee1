"""Real files of other projects: each gives traces or is quarantined with a reason, and what their
sources state (usage, calls, finish reasons, texts) is what we hold. Skipped without ../shared."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flywheel.home import Home
from flywheel.records import ModelCall, Trace
from storage.importer import import_path
from storage.queries import traces

pytestmark = pytest.mark.slow


class Expected(NamedTuple):
    formats: set[str]
    """Formats that its rows are of."""
    rows: int
    """Rows understood."""
    quarantined: int = 0
    reason: str = ""
    """Part of the reason of what is quarantined."""


UNKNOWN = "is of no known format"
TABLE: dict[str, Expected] = {
    "openai_chat_logs/nvidia_chat_completion.json": Expected({"openai_chat"}, 3),
    "openai_chat_logs/openinference-1.jsonl": Expected({"openai_chat"}, 7),
    "openai_chat_logs/openllmetry-1.jsonl": Expected({"openai_chat"}, 18),
    "openai_chat_logs/openllmetry-2.jsonl": Expected({"openai_chat"}, 18),
    "openai_chat_logs/openllmetry-4.jsonl": Expected({"openai_chat"}, 18),
    "openai_chat_logs/openllmetry-5.jsonl": Expected({"openai_chat"}, 18),
    "openai_chat_logs/opentelemetry-python-contrib-1.jsonl": Expected({"openai_chat"}, 7),
    "openai_chat_logs/opentelemetry-python-contrib-2.jsonl": Expected({"openai_chat"}, 7),
    "openai_chat_logs/opentelemetry-python-contrib-4.jsonl": Expected({"openai_chat"}, 5),
    "openai_chat_logs/pydantic-ai-1.jsonl": Expected({"openai_chat"}, 18),
    "openai_chat_logs/pydantic-ai-2.jsonl": Expected({"openai_chat"}, 18),
    "openai_chat_logs/pydantic-ai-4.jsonl": Expected({"openai_chat"}, 18),
    "openai_chat_logs/pydantic-ai-5.jsonl": Expected({"openai_chat"}, 18),
    "openai_chat_stream_sse/openllmetry-1.jsonl": Expected({"openai_chat"}, 8),
    "openai_chat_stream_sse/openllmetry-4.jsonl": Expected({"openai_chat"}, 8),
    "openai_chat_stream_sse/pydantic-ai-1.jsonl": Expected({"openai_chat"}, 6),
    "openai_chat_stream_sse/tensorzero_chat_completions_example.json": Expected({"openai_chat"}, 1),
    "openai_chat_stream_sse/tensorzero_chat_completions_streaming_example.jsonl": Expected(
        {"streams"}, 1
    ),
    "otlp_json/openinference-otlp.otlp.json": Expected({"otlp"}, 1),
    "otlp_json/openllmetry-0.40.14-indexed-attrs.otlp.json": Expected({"otlp"}, 1),
    "otlp_json/openllmetry-0.62.4-input-messages.otlp.json": Expected({"otlp"}, 1),
    "otlp_json/otel-openai-v2-events.logs.json": Expected({"otlp"}, 1),
    "otlp_json/otel-openai-v2-events.otlp.json": Expected({"otlp"}, 1),
    "langfuse_export/agno-2025-06-11.trace.json": Expected({"langfuse"}, 1),
    "langfuse_export/agno-2025-06-11.chatml.json": Expected(set(), 0, 1, UNKNOWN),
    "langfuse_export/google-adk-2025-08-28.trace.json": Expected({"langfuse"}, 1),
    "langfuse_export/langgraph-js-2025-10-30.trace.json": Expected({"langfuse"}, 1),
    "langfuse_export/openai-agents-2025-09-30.trace.json": Expected({"langfuse"}, 1),
    "langfuse_export/vercel-aisdk-2025-11-17.trace.json": Expected({"langfuse"}, 1),
    "anthropic_messages/openllmetry-1.jsonl": Expected({"anthropic"}, 7),
    "openinference/oi-spans.parquet": Expected({"openinference"}, 85),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_real_file_gives_what_it_holds(shared: Path, home: Home, name: str):
    path = shared / name
    if not path.exists():
        pytest.skip(f"no {name}")
    expected = TABLE[name]
    report = import_path(home, path, project="p")
    assert set(report.formats) == expected.formats
    assert (report.readable, report.quarantined) == (expected.rows, expected.quarantined)
    assert all(expected.reason in reject.reason for reject in report.rejects)
    assert (report.traces > 0) == (expected.rows > 0)
    again = import_path(home, path, project="p")
    assert (again.traces, again.spans, again.duplicates) == (0, 0, report.spans + report.duplicates)


def test_every_real_file_is_read_or_refused_with_a_reason(shared: Path, home: Home):
    report = import_path(home, shared, project="p")
    assert report.files == sum(1 for path in shared.rglob("*") if path.is_file())
    assert report.quarantined >= len(report.rejects) > 0
    for reject in report.rejects:
        assert reject.reason and reject.path and reject.line > 0
        assert reject.kept and (home.root / reject.kept).exists()
        assert "has a shape that" not in reject.reason, reject


def held(home: Home) -> list[Trace]:
    return [trace for batch in traces(home, project="p") for trace in batch]


def calls(home: Home) -> list[ModelCall]:
    return [span.call for trace in held(home) for span in trace.spans if span.call]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def test_usage_calls_and_finish_reasons_of_openai_logs_are_as_stated(shared: Path, home: Home):
    folder = shared / "openai_chat_logs"
    stated: set[tuple[Any, ...]] = set()
    for path in folder.glob("*.jsonl"):
        for row in rows(path):
            response = row["response"]
            for choice in response.get("choices") or ():
                message = choice.get("message") or {}
                made = list(message.get("tool_calls") or ())
                if legacy := message.get("function_call"):
                    made.append({"id": None, "function": legacy})
                stated.add(
                    (
                        row["request"]["model"],
                        message.get("content"),
                        choice["finish_reason"],
                        tuple(
                            (call["id"] or None, call["function"].get("arguments", "{}"))
                            for call in made
                        ),
                        response["usage"]["prompt_tokens"],
                        response["usage"]["completion_tokens"],
                    )
                )
    import_path(home, folder, project="p")
    found = set()
    for call in calls(home):
        for choice in call.choices:
            if call.model is None:
                continue
            message = choice.message
            has_text = any(type(part).__name__ == "Text" for part in message.parts)
            found.add(
                (
                    call.model,
                    message.text if has_text else None,
                    choice.finish_reason,
                    tuple((one.id, one.arguments) for one in message.tool_calls),
                    call.usage.input_tokens,
                    call.usage.output_tokens,
                )
            )
    assert stated <= found


OTLP = (
    "openllmetry-0.40.14-indexed-attrs",
    "openllmetry-0.62.4-input-messages",
    "openinference-otlp",
)


@pytest.mark.parametrize("name", OTLP)
def test_usage_and_finish_reasons_of_otlp_are_as_stated(shared: Path, home: Home, name: str):
    path = shared / "otlp_json" / f"{name}.otlp.json"
    stated: Counter[tuple[int | None, int | None]] = Counter()
    calls_stated = 0
    for resource in json.loads(path.read_text())["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                attributes = {one["key"]: one["value"] for one in span.get("attributes", ())}
                if "embed" in span["name"].lower():
                    continue

                def said(*keys: str, found: dict[str, Any] = attributes) -> int | None:
                    for key in keys:
                        if key in found:
                            return int(found[key]["intValue"])
                    return None

                numbers = (
                    said("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens",
                         "llm.token_count.prompt"),
                    said("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
                         "llm.token_count.completion"),
                )  # fmt: skip
                calls_stated += sum("tool_calls." in key and key.endswith("name") and
                                    "output" in key for key in attributes)  # fmt: skip
                if numbers != (None, None):
                    stated[numbers] += 1
    import_path(home, path, project="p")
    found = Counter((call.usage.input_tokens, call.usage.output_tokens) for call in calls(home))
    assert stated and stated <= found
    called = sum(len(choice.message.tool_calls) for call in calls(home) for choice in call.choices)
    assert called >= calls_stated


def _spoken(path: Path, home: Home) -> dict[str, tuple[Any, ...]]:
    """By response id: roles and texts, calls with their arguments' value, finish reasons."""
    import_path(home, path, project="p")
    found = {}
    for trace in held(home):
        for span in trace.spans:
            named = span.attributes.get("gen_ai.response.id") or span.attributes.get("response_id")
            if not span.call or not named or not span.call.choices or not span.call.input:
                continue

            def told(message: Any) -> Any:
                made = [(one.name, json.loads(one.arguments)) for one in message.tool_calls]
                return (message.role, message.text, made)

            asked = [told(message) for message in span.call.input]
            found[str(named)] = (asked, [told(one.message) for one in span.call.choices])
    return found


def test_one_conversation_is_the_same_in_every_format(shared: Path, tmp_path: Path):
    logs = _spoken(shared / "openai_chat_logs", Home(tmp_path / "logs"))
    newest = _spoken(shared / "otlp_json" / f"{OTLP[1]}.otlp.json", Home(tmp_path / "newest"))
    indexed = _spoken(shared / "otlp_json" / f"{OTLP[0]}.otlp.json", Home(tmp_path / "indexed"))
    compared = 0
    for first, second in ((logs, newest), (logs, indexed), (newest, indexed)):
        for named in first.keys() & second.keys():
            compared += 1
            assert first[named] == second[named], named
    assert compared >= 20
