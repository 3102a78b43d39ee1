"""Real files of other projects through the importer and the store: each gives traces or is
quarantined with a reason, and what their sources state (usage, calls, finish reasons) is what the
store holds. What each file gives stands in the tables beside. Skipped without ../shared."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flywheel.home import Home
from flywheel.records import ModelCall, Trace
from storage.importer import import_path
from storage.queries import traces

pytestmark = pytest.mark.slow


def test_every_real_file_is_read_or_refused_with_a_reason(shared: Path, home: Home):
    report = import_path(home, shared, project="p")
    assert report.files == sum(1 for path in shared.rglob("*") if path.is_file())
    assert report.quarantined >= len(report.rejects) > 0
    for reject in report.rejects:
        assert reject.reason and reject.path and reject.line > 0
        assert reject.kept and (home.root / reject.kept).exists()
        assert "has a shape that" not in reject.reason, reject
    again = import_path(home, shared, project="p")
    assert (again.traces, again.spans) == (0, 0) and again.duplicates >= report.spans


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
