"""Claude Code and opencode sessions, small; and traces in several files, in any order of import."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flywheel.home import Home
from flywheel.records import Reasoning, Text, ToolResult, Trace, Usage
from storage.importer import import_path
from storage.queries import traces
from tests.storage.formats import agent_seeds as seeds


def spans(parsed: Any) -> dict[str, Any]:
    return {span.id: span for span in parsed.traces[0].spans}


def test_blocks_of_one_message_are_one_call_with_one_usage(read):
    parsed = read("claude_code", seeds.CLAUDE)
    found = spans(parsed)
    first, second = found["m1"].call, found["m2"].call
    assert [part.__class__.__name__ for part in first.choices[0].message.parts] == [
        "Text", "ToolCall",
    ]  # fmt: skip
    assert first.usage == Usage(input_tokens=100, cached_input_tokens=90, output_tokens=5)
    assert first.choices[0].finish_reason == "tool_calls"
    assert [message.role for message in second.input] == ["user", "assistant", "tool"]
    assert found["tu1"].result == ToolResult(content="three folders", id="tu1")
    assert found["m2"].parents == ("m1",) and found["tu1"].parents == ("m1",)
    assert parsed.traces[0].conversation == "calm-sea"


def test_an_edited_prompt_is_a_branch(read):
    other = [
        seeds.user("c6", "a1", "instead"),
        seeds.assistant("c7", "c6", "m9", [{"type": "text", "text": "Else."}]),
    ]
    found = spans(read("claude_code", [*seeds.CLAUDE, *other]))
    assert [message.text for message in found["m9"].call.input] == ["go", "instead"]
    assert len(found["m2"].call.input) == 3 and found["m9"].parents == ()


def test_a_compaction_and_a_clear_begin_anew(read):
    compact = [
        seeds.event("d6", "a5", type="system", subtype="compact_boundary", content="c"),
        seeds.user("d7", "d6", "summary so far", isCompactSummary=True),
        seeds.assistant("d8", "d7", "m4", [{"type": "text", "text": "On."}]),
        seeds.user("d9", "d8", "<command-name>/clear</command-name>"),
        seeds.user("d10", "d9", "new"),
        seeds.assistant("d11", "d10", "m5", [{"type": "text", "text": "New."}]),
    ]
    found = spans(read("claude_code", [*seeds.CLAUDE, *compact]))
    assert [message.text for message in found["m4"].call.input] == ["summary so far"]
    assert found["m4"].parents == ("m2",)
    assert [message.text for message in found["m5"].call.input] == ["new"]
    assert found["m5"].parents == ()


def test_cycles_and_lost_parents_end(read):
    loop = [
        seeds.user("a1", "a3", "go"),
        seeds.assistant("a2", "a1", "m1", [], isSidechain=True),
        seeds.user("a3", "a2", "on"),
        seeds.assistant("a4", "zz", "m2", [{"type": "text", "text": "x"}]),
    ]
    found = spans(read("claude_code", loop))
    assert {"m1", "m2"} <= found.keys() and found["m2"].parents == ("event-zz",)


def test_many_branches_of_a_long_session_do_not_grow_with_the_square(read):
    session = [seeds.user("a0", None, "go")]
    for at in range(600):
        session.append(seeds.user(f"a{at + 1}", f"a{at}", "q" * 100))
    for at in range(600):
        text = [{"type": "text", "text": "x"}]
        session.append(seeds.assistant(f"b{at}", "a600", f"m{at}", text))
        session.append(seeds.user(f"c{at}", f"b{at}", "on"))
        session.append(seeds.assistant(f"d{at}", f"c{at}", f"n{at}", text))
    for event in session:
        event["timestamp"] = "2026-01-31T10:00:00Z"
    found = [span for span in spans(read("claude_code", session)).values() if span.call]
    repeated = sum(len(span.call.input) for span in found)
    assert len(found) == 1200 and all(span.call.choices for span in found)
    assert 601 < repeated < 400_000
    left = [span for span in found if "input_not_repeated" in span.attributes]
    assert left and all(span.attributes["input_not_repeated"] >= 601 for span in left)


def test_the_last_word_of_a_message_stands(read):
    parsed = read("opencode", seeds.OPENCODE)
    found = spans(parsed)
    call = found["a1"].call
    assert call.choices[0].message.parts[0] == Reasoning(text="hm", signature="sig")
    assert call.usage == Usage(
        input_tokens=100, cached_input_tokens=90, output_tokens=5, reasoning_tokens=0
    )
    assert (call.cost_usd, call.choices[0].finish_reason) == (0.25, "tool_calls")
    assert call.input[0].parts == (Text(text="be kind"),) and call.input[1].text == "go"
    assert call.tools[0]["function"]["parameters"] == {
        "type": "object", "required": ["prompt"], "properties": {
            "prompt": {"type": "string", "description": "what"},
            "kind": {"type": "string", "enum": ["a"]}},
    }  # fmt: skip


def test_a_session_that_a_tool_started_hangs_on_it(read):
    parsed = read("opencode", seeds.OPENCODE)
    found = spans(parsed)
    assert len(parsed.traces) == 1 and parsed.traces[0].external_id == "s1"
    assert found["s2"].parents == ("p3",) and found["p3"].parents == ("a1",)
    assert found["a2"].parents == ("s2",) and found["a2"].call.cost_usd == 0.5
    assert found["p3"].result.content == "three folders"


def test_a_message_that_has_not_ended_has_no_usage(read):
    found = spans(read("opencode", seeds.OPENCODE[:5]))
    assert found["a1"].call.choices == () and found["a1"].call.usage.input_tokens is None
    assert found["a1"].call.cost_usd is None


FILES: dict[str, dict[str, Sequence[Any]]] = {
    "continuations": {
        "trajectory.json": [seeds.ATIF], "trajectory.cont-1.json": [seeds.ATIF_CONTINUED],
        "trajectory.summarization-1-summary.json": [seeds.ATIF_SUMMARY],
    },
    "a sub-agent": {"session.jsonl": seeds.CLAUDE, "agent-x1.jsonl": seeds.CLAUDE_SIDE},
    "a session that grew": {"old.jsonl": seeds.CLAUDE[:4], "new.jsonl": seeds.CLAUDE,
                            "last.jsonl": seeds.CLAUDE[4:]},
    "a cleared session": {
        "first.jsonl": seeds.CLAUDE,
        "second.jsonl": [
            {**seeds.user("e1", None, "new"), "sessionId": "cc2"},
            {**seeds.assistant("e2", "e1", "m7", [{"type": "text", "text": "n"}]),
             "sessionId": "cc2"},
        ],
    },
    "a stream that grew": {"old.jsonl": seeds.OPENCODE[:9], "new.jsonl": seeds.OPENCODE},
}  # fmt: skip


def stored(home: Home) -> list[Trace]:
    found = [trace for batch in traces(home, project="p") for trace in batch]
    return sorted(found, key=lambda trace: trace.id)


@pytest.mark.slow
@pytest.mark.parametrize("case", FILES)
def test_files_of_one_trace_give_the_same_in_any_order(tmp_path: Path, case: str):
    orders = list(itertools.permutations(FILES[case]))
    results = []
    for number, order in enumerate(orders[:2] + orders[-1:]):
        home = Home(tmp_path / f"home-{number}")
        for name in order:
            file = tmp_path / name
            file.write_text("\n".join(json.dumps(row) for row in FILES[case][name]))
            import_path(home, file, project="p")
        results.append([trace for trace in stored(home)])
    plain = [[_without_raw(trace) for trace in found] for found in results]
    assert plain[0] == plain[1] == plain[-1]
    assert len(plain[0]) == (2 if case == "a cleared session" else 1)
    assert len({trace.conversation for trace in results[0]}) == 1
    assert not any("incomplete" in text for one in results[0] for text in one.fidelity_reasons)


def _without_raw(trace: Trace) -> Any:
    import msgspec

    return msgspec.structs.replace(trace, raw=None)
