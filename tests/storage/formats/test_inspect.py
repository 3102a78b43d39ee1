"""Inspect logs, small: attachments, pools of messages, agents, scorers, older logs, no samples."""

from typing import Any

import pytest

from flywheel.errors import BadRecord
from flywheel.records import ToolResult, Usage, say
from storage.formats.inspect_values import Attachments
from tests.storage.formats import agent_seeds as seeds


def spans(parsed: Any) -> dict[str, Any]:
    return {span.id: span for trace in parsed.traces for span in trace.spans}


def test_references_are_replaced_by_what_they_stand_for(read):
    call = spans(read("inspect", seeds.INSPECT))["m1"].call
    assert call.input == (say("system", "s"), say("user", "the long question"))
    assert call.tools[0]["function"]["description"] == "runs a command"
    assert call.choices[0].finish_reason == "tool_calls"
    assert call.sampling.temperature == 0.5 and call.sampling.other == {"tool_choice": "auto"}


def test_cached_tokens_are_counted_in(read):
    call = spans(read("inspect", seeds.INSPECT))["m1"].call
    assert call.usage == Usage(input_tokens=100, cached_input_tokens=90, output_tokens=5)


def test_agents_and_tools_hang_where_they_ran(read):
    found = spans(read("inspect", seeds.INSPECT))
    assert (found["sp2"].kind, found["sp2"].parents) == ("agent", ("sp1",))
    assert found["m1"].parents == ("sp2",) and found["t1"].parents == ("m1",)
    assert found["t1"].error == "timeout: too slow"
    assert found["t1"].result == ToolResult(content="too slow", id="c1", name="bash", is_error=True)


def test_a_scorers_call_is_a_trace_of_its_own(read):
    parsed = read("inspect", seeds.INSPECT)
    sample, scorer = parsed.traces
    assert (sample.external_id, scorer.external_id) == ("u1", "u1#scorer")
    assert scorer.conversation == sample.conversation == "u1"
    assert [span.id for span in scorer.spans] == ["m2"]


def test_scores_are_feedback_of_their_scorers(read):
    parsed = read("inspect", seeds.INSPECT)
    said = {one.name: one for one in parsed.feedback}
    assert (said["match"].value, said["match"].kind, said["match"].by) == (
        "C", "category", "inspect:match",
    )  # fmt: skip
    assert said["match"].attributes == {"answer": "A"} and said["loss"].value == "NaN"


def test_what_no_call_holds_is_kept_and_listed(read):
    parsed = read("inspect", seeds.INSPECT)
    assert {"results", "stats", "events.sample_init", "sample.store"} <= parsed.unmapped.keys()
    messages = [*seeds.SAMPLE["messages"], {"role": "user", "content": "unseen"}]
    row = {**seeds.INSPECT, "samples": [{**seeds.SAMPLE, "messages": messages}]}
    root = read("inspect", row).traces[0].spans[0]
    assert [one["parts"][0]["text"] for one in root.attributes["messages"]] == ["unseen"]


def test_an_older_log_keeps_its_texts_in_a_transcript(read):
    events = [
        {"event": "step", "action": "begin", "type": "scorer"},
        {**seeds.MODEL_EVENT, "uuid": "judge", "input_refs": [], "span_id": None},
        {"event": "step", "action": "end", "type": "scorer"},
        {**seeds.MODEL_EVENT, "input_refs": [], "span_id": None,
         "input": [{"role": "user", "content": "tc://h1"}]},
    ]  # fmt: skip
    old = {"id": 1, "epoch": 1, "transcript": {"events": events, "content": {"h1": "long"}}}
    parsed = read("inspect", {**seeds.INSPECT, "samples": [old]})
    assert spans(parsed)["m1"].call.input == (say("user", "long"),)
    assert [trace.external_id for trace in parsed.traces] == ["r1:t1:1:1", "r1:t1:1:1#scorer"]


def test_a_sample_without_events_is_its_messages(read):
    bare = {"id": 1, "epoch": 2, "messages": seeds.TALK,
            "output": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 6}, "choices": [
                {"message": {"content": "done"}, "stop_reason": "stop"}]}}  # fmt: skip
    parsed = read("inspect", {**seeds.INSPECT, "samples": [bare]})
    calls = [span.call for span in parsed.traces[0].spans if span.call]
    assert calls[-1].usage.input_tokens == 5 and calls[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("samples", [None, [], 3])
def test_a_log_without_samples_says_so(read, samples):
    with pytest.raises(BadRecord) as caught:
        read("inspect", {**seeds.INSPECT, "samples": samples})
    assert caught.value.field == "samples"


def test_one_bad_sample_leaves_the_others(read):
    parsed = read("inspect", {**seeds.INSPECT, "samples": [seeds.SAMPLE, {"events": 3}, 4]})
    assert len(parsed.traces) == 2
    assert [error.field for error in parsed.rejects] == ["samples[1].events", "samples[2]"]


def test_calls_that_go_on_share_what_was_before(read):
    pool = [{"role": "user", "content": f"m{at}"} for at in range(300)]
    events = [
        {**seeds.MODEL_EVENT, "uuid": f"m{at:03d}", "input_refs": [[0, at]], "span_id": None}
        for at in range(1, 300)
    ]
    sample = {"id": 1, "message_pool": pool, "events": events}
    found = spans(read("inspect", {**seeds.INSPECT, "samples": [sample]}))
    calls = [span.call for span in found.values() if span.call]
    assert len(calls) == 299 and len(found["m299"].call.input) == 299
    assert sum(len(call.input) for call in calls) == 299
    hostile = {**sample, "events": [{**events[0], "input_refs": [[0, 300]] * 4000}]}
    with pytest.raises(BadRecord, match="refers to over"):
        read("inspect", {**seeds.INSPECT, "samples": [hostile]})


def test_what_references_may_grow_to_is_bounded():
    held = Attachments({"h": "x" * 10, "loop": "attachment://loop"})
    held.left = 25
    assert held.restored(["attachment://h"] * 3) == ["x" * 10, "x" * 10, "attachment://h"]
    assert held.restored({"a": "attachment://none", "b": "attachment://loop"}) == {
        "a": "attachment://none", "b": "attachment://loop",
    }  # fmt: skip
