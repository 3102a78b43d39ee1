"""Runs of agents and benchmarks, small: steps, tools with what came of them, totals, rewards."""

from typing import Any

import pytest

from flywheel.errors import BadRecord
from flywheel.records import Reasoning, Text, ToolCall, ToolResult, Usage
from storage.formats.turns import MOST_TURNS
from tests.storage.formats import agent_seeds as seeds


def kinds(parsed: Any) -> list[tuple[str, str]]:
    return [(span.kind, span.name) for span in parsed.traces[0].spans]


def calls(parsed: Any) -> list[Any]:
    return [span.call for span in parsed.traces[0].spans if span.call]


def ran(parsed: Any) -> list[Any]:
    return [span for span in parsed.traces[0].spans if span.tool]


def test_a_command_in_a_text_is_a_tool_with_its_observation(read):
    parsed = read("swe_agent", seeds.SWE_TEXT)
    assert kinds(parsed) == [
        ("agent", "swe-agent"), ("model", "chat"), ("tool", "ls"), ("model", "chat"),
        ("tool", "submit"),
    ]  # fmt: skip
    first, last = ran(parsed)
    assert first.tool == ToolCall(name="ls", arguments='{"command":"ls -a\\n"}')
    assert first.result == ToolResult(content="a.py") and first.parents == ("000001",)
    assert first.attributes["execution_time"] == 0.5
    assert last.result == ToolResult(content="")
    assert [message.text for message in calls(parsed)[0].input] == [
        "s", "a demonstration", "fix it",
    ]  # fmt: skip


def test_what_a_run_states_of_itself_stands_on_its_agent(read):
    parsed = read("swe_agent", seeds.SWE_TEXT)
    root = parsed.traces[0].spans[0]
    assert root.attributes["instance_cost"] == 0.5 and root.attributes["api_calls"] == 2
    assert root.attributes["exit_status"] == "submitted" and root.error is None
    assert parsed.unmapped["info.edited_files30"] == 1
    assert calls(parsed)[0].model == "gpt-4o"
    assert parsed.traces[0].external_id.startswith("repo-i1:")


def test_a_tools_message_answers_the_call_that_it_names(read):
    parsed = read("swe_agent", seeds.SWE_CALLS)
    (tool,) = ran(parsed)
    assert tool.result == ToolResult(content="a.py", id="c1")
    assert tool.tool.arguments == '{"cmd": "ls"}'


def test_a_run_that_was_not_submitted_says_so(read):
    row = {**seeds.SWE_TEXT, "info": {"exit_status": "exit_cost"}}
    assert read("swe_agent", row).traces[0].spans[0].error == "exit_cost"


def test_a_trajectory_without_its_history_is_its_steps(read):
    parsed = read("swe_agent", {**seeds.SWE_TEXT, "history": []})
    assert [call.choices[0].message.text[:4] for call in calls(parsed)] == ["look", "end\n"]
    assert [span.tool.name for span in ran(parsed)] == ["ls", "submit"]


def test_each_answer_has_its_own_usage_cost_and_time(read):
    parsed = read("mini_swe", seeds.MINI)
    (call,) = calls(parsed)
    assert call.usage == Usage(input_tokens=100, cached_input_tokens=90, output_tokens=7)
    assert (call.cost_usd, call.model) == (0.25, "deepseek/deepseek-chat")
    assert call.choices[0].finish_reason == "tool_calls" and call.sampling.temperature == 0.0
    (tool,) = ran(parsed)
    assert tool.result == ToolResult(content="<returncode>0</returncode>", id="c1")
    assert tool.attributes["raw_output"] == "a.py" and tool.start < tool.end
    assert parsed.traces[0].spans[0].attributes["submission"] == "diff"


def test_a_bare_list_of_messages_is_one_run(read):
    parsed = read("mini_swe", seeds.MINI_BARE)
    assert [span.tool.arguments for span in ran(parsed)] == [
        '{"command":"ls"}', '{"command":"echo COMPLETE"}',
    ]  # fmt: skip
    assert "a.py" in ran(parsed)[0].result.content and ran(parsed)[1].result is None


def test_a_long_run_holds_every_answer_and_the_last_input(read):
    turn = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    row = {**seeds.MINI, "messages": turn * (MOST_TURNS + 1)}
    found = calls(read("mini_swe", row))
    assert len(found) == MOST_TURNS + 1 and all(call.choices for call in found)
    assert [len(call.input) for call in found] == [0] * MOST_TURNS + [2 * MOST_TURNS + 1]


def test_actions_and_observations_are_tools_under_the_answer_that_asked(read):
    parsed = read("openhands", seeds.HANDS)
    (call,) = calls(parsed)
    assert call.usage.input_tokens == 100 and call.choices[0].finish_reason == "tool_calls"
    (tool,) = ran(parsed)
    assert tool.tool == ToolCall(name="execute_bash", arguments='{"command": "ls"}', id="t1")
    assert tool.result.content == "a.py" and tool.attributes["message"] == "ran"
    assert ("other", "agent_state_changed") in kinds(parsed)


def test_two_actions_of_one_response_are_one_call(read):
    again = [{**one, "id": one["id"] + 10, "cause": 13} for one in seeds.HANDS[2:]]
    parsed = read("openhands", [*seeds.HANDS, *again])
    assert len(calls(parsed)) == 1 and len(ran(parsed)) == 2


def test_an_output_row_has_costs_and_what_its_author_judged(read):
    parsed = read("openhands", seeds.HANDS_OUTPUT)
    (call,) = calls(parsed)
    assert call.cost_usd == 0.25 and call.choices[0].message.text == "I look."
    assert ran(parsed)[0].result.content == "a.py"
    assert [(one.name, one.value, one.by) for one in parsed.feedback] == [
        ("success", True, "openhands")
    ]


def test_a_reward_is_feedback_of_the_benchmark(read):
    parsed = read("tau_bench", seeds.TAU)
    (said,) = parsed.feedback
    assert (said.name, said.value, said.by) == ("reward", 0.0, "tau-bench")
    again = read("tau_bench", {**seeds.TAU, "trial": 2})
    assert again.traces[0].id != parsed.traces[0].id
    assert ran(parsed)[0].result.content == "a.py"


def test_rewards_and_metrics_of_a_rollout_are_feedback(read):
    parsed = read("verifiers", seeds.VERIFIERS)
    assert {(one.name, one.value) for one in parsed.feedback} == {("reward", 0.5), ("success", 1.0)}
    first = calls(parsed)[0]
    assert [message.text for message in first.input] == ["be kind", "go"]
    assert parsed.traces[0].spans[0].attributes["answer"] == "A"


def test_a_trajectory_is_its_steps_with_token_ids(read):
    parsed = read("atif", seeds.ATIF)
    (call,) = calls(parsed)
    assert call.usage == Usage(input_tokens=100, cached_input_tokens=90, output_tokens=7)
    answer = call.choices[0]
    assert answer.message.parts[:2] == (Reasoning(text="hm"), Text(text="look"))
    assert answer.tokens.completion_ids == (3,) and answer.tokens.logprobs == (-0.5,)
    assert len(call.tools) == 1 and call.cost_usd == 0.25
    assert ran(parsed)[0].result == ToolResult(content="a.py", id="c1")


def test_sub_agents_inside_a_trajectory_hang_on_the_step_that_asked(read):
    inner = {**seeds.ATIF_SUMMARY, "session_id": "s1-summarization-1-summary"}
    parsed = read("atif", {**seeds.ATIF, "subagent_trajectories": [inner]})
    spans = parsed.traces[0].spans
    named = "agent-s1-summarization-1-summary"
    (answer,) = [span for span in spans if span.call and span.parents == (named,)]
    assert answer.call.choices[0].message.text == "a.py"
    told = [span for span in spans if span.id == named]
    assert {span.parents for span in told} == {(), ("00-000004",)} and all(s.parts for s in told)


@pytest.mark.parametrize(
    ("name", "row", "field"),
    [
        ("swe_agent", {"history": [{"agent": "main", "role": 3}]}, "history[0].role"),
        ("mini_swe", {**seeds.MINI, "messages": [3]}, "messages[0]"),
        ("openhands", {**seeds.HANDS_OUTPUT, "history": [*seeds.HANDS_OUTPUT["history"] * 3, 3]},
         "history[9]"),
        ("atif", {**seeds.ATIF, "steps": [3]}, "steps[0]"),
        ("tau_bench", {**seeds.TAU, "traj": []}, "traj"),
        ("verifiers", {**seeds.VERIFIERS, "prompt": [], "completion": []}, "prompt"),
    ],
)  # fmt: skip
def test_wrong_shapes_name_the_field(read, name, row, field):
    with pytest.raises(BadRecord) as caught:
        read(name, row)
    assert caught.value.field == field
