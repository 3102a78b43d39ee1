from typing import Any

import pytest

from flywheel.records import Message, Reasoning, Refusal, Text, Tokens, ToolCall, Truncated, say
from flywheel.rows import TrainingRow
from storage.rules import RULES
from tests.storage.rows_for_curation import a_row
from tests.storage.rows_for_curation import judged as reasons


def kept(name: str, rows: list[TrainingRow], **params: Any) -> list[str]:
    return [
        row.trace_id
        for row, reason in zip(rows, reasons(name, rows, **params), strict=True)
        if reason is None
    ]


@pytest.mark.parametrize("name", sorted(RULES))
def test_each_rule_takes_no_rows_and_passes_a_good_one(name: str) -> None:
    params = {"min_reward": {"value": 1.0}, "language": {"keep": "en"}}.get(name, {})
    assert reasons(name, [], **params) == []
    assert reasons(name, [a_row(1)], **params) == [None]


# --- min_reward ----------------------------------------------------------------------------------


def test_a_reward_on_the_line_passes_and_one_under_it_says_both_numbers() -> None:
    assert reasons("min_reward", [a_row(1, reward=0.5)], value=0.5) == [None]
    assert reasons("min_reward", [a_row(1, reward=0.25)], value=0.5) == ["reward 0.25 is under 0.5"]


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_an_unknown_reward_never_passes_whatever_is_wanted(value: float) -> None:
    rows = [a_row(1, reward=None), a_row(2, reward=float("nan"))]
    unknown, no_number = reasons("min_reward", rows, value=value)
    assert unknown and "unknown" in unknown
    assert no_number and "not a number" in no_number


# --- exact_duplicates ----------------------------------------------------------------------------


def test_copies_under_other_ids_count_once_and_name_what_stays() -> None:
    rows = [a_row(1), a_row(1, trace_id="again", conversation="other"), a_row(2)]
    assert kept("exact_duplicates", rows) == ["trace-1", "trace-2"]
    assert reasons("exact_duplicates", rows)[1] == "same prompt and answer as trace trace-1"


def test_the_copy_that_is_worth_most_stays() -> None:
    bare = a_row(1, trace_id="bare", tokens=None)
    unconfirmed = a_row(1, trace_id="unconfirmed", confirmed_by=None)
    ungraded = a_row(1, trace_id="ungraded", reward=None)
    whole = a_row(1, trace_id="whole")
    assert kept("exact_duplicates", [bare, unconfirmed, ungraded, whole]) == ["whole"]


def test_the_same_answer_to_another_prompt_is_no_duplicate() -> None:
    rows = [a_row(1, completion=say("assistant", "x")), a_row(2, completion=say("assistant", "x"))]
    assert len(kept("exact_duplicates", rows)) == 2


def test_a_null_answer_is_not_an_empty_one() -> None:
    rows = [
        a_row(1, trace_id="null", completion=Message(role="assistant")),
        a_row(1, trace_id="empty", completion=say("assistant", "")),
    ]
    assert kept("exact_duplicates", rows) == ["null", "empty"]


# --- length --------------------------------------------------------------------------------------


def test_length_counts_prompt_and_answer_together_and_the_answer_alone() -> None:
    row = a_row(1)  # 3 and 3 tokens
    assert reasons("length", [row], max_tokens=6, min_tokens=3) == [None]
    assert reasons("length", [row], max_tokens=5) == ["6 tokens, at most 5 wanted"]
    assert reasons("length", [row], min_tokens=4) == ["answer of 3 tokens, at least 4 wanted"]


def test_length_without_tokens_is_estimated_and_says_so() -> None:
    row = a_row(1, tokens=None, messages=(say("user", "x" * 300),))
    [reason] = reasons("length", [row], max_tokens=50)
    assert reason == "105 tokens (estimated), at most 50 wanted"


def test_a_two_megabyte_row_is_refused_whole_by_length() -> None:
    row = a_row(1, tokens=None, messages=(say("user", "word " * 400_000),))
    [reason] = reasons("length", [row], max_tokens=2048)
    assert reason and "estimated" in reason


# --- fidelity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"fidelity": None}, "fidelity unknown"),
        ({"fidelity": "view_only"}, "fidelity view_only"),
        ({"fidelity": "renderable"}, "wanted trainable"),
        ({"tokens": None}, "without its tokens"),
        ({"finish_reason": "length"}, "ended by 'length'"),
        ({"finish_reason": "content_filter"}, "content_filter"),
        ({"finish_reason": None}, "cut"),
        ({"finish_reason": ""}, "ended by ''"),
        ({"completion": Message(role="assistant")}, "empty"),
        ({"completion": say("assistant", " \n")}, "empty"),
        ({"completion": Message(role="assistant", parts=(Reasoning(text="hm"),))}, "empty"),
        ({"completion": Message(role="assistant", parts=(Refusal(text="no"),))}, "refused"),
        (
            {"messages": (Message(role="tool", parts=(Truncated(kept="x", size=9, digest="d"),)),)},
            "truncated",
        ),
    ],
)
def test_what_is_not_whole_never_passes(changed: dict[str, Any], why: str) -> None:
    [reason] = reasons("fidelity", [a_row(1, **changed)])
    assert reason is not None and why in reason


def test_a_tool_call_without_text_is_an_answer() -> None:
    call = Message(role="assistant", parts=(ToolCall(name="look_up", arguments="{}"),))
    assert reasons("fidelity", [a_row(1, completion=call, finish_reason="tool_calls")]) == [None]


def test_a_written_row_need_not_say_how_it_ended_but_a_sampled_one_must() -> None:
    changed: dict[str, Any] = {"fidelity": "renderable", "tokens": None, "finish_reason": None}
    accept = ["trainable", "renderable"]
    written = a_row(1, origin="demonstration", **changed)
    assert reasons("fidelity", [written], accept=accept) == [None]
    [reason] = reasons("fidelity", [a_row(1, origin="production", **changed)], accept=accept)
    assert reason and "cut" in reason


# --- confirmed -----------------------------------------------------------------------------------


def test_own_answers_need_confirmation_and_demonstrations_do_not() -> None:
    rows = [
        a_row(1, origin=origin, confirmed_by=None)
        for origin in ("rollout", "production", "import", "demonstration")
    ]
    assert [reason is None for reason in reasons("confirmed", rows)] == [False, False, False, True]


def test_only_the_kinds_of_confirmation_that_are_named_count_and_people_always_do() -> None:
    rows = [a_row(k, confirmed_by=by) for k, by in enumerate(("feedback", "code", "human", ""))]
    assert kept("confirmed", rows, by=["feedback"]) == ["trace-0", "trace-2"]
    assert kept("confirmed", rows) == ["trace-0", "trace-1", "trace-2"]


# --- per_problem ---------------------------------------------------------------------------------


def test_the_best_rewarded_answers_of_a_problem_stay() -> None:
    rows = [a_row(k, problem_id="p", reward=reward) for k, reward in enumerate((0.5, 1.0, None))]
    assert kept("per_problem", rows, keep=1) == ["trace-1"]
    assert kept("per_problem", rows, keep=2) == ["trace-0", "trace-1"]


def test_among_equals_the_shortest_can_be_preferred() -> None:
    rows = [
        a_row(k, problem_id="p", tokens=Tokens(prompt_ids=(1,), completion_ids=(7,) * size))
        for k, size in enumerate((5, 2, 9))
    ]
    assert kept("per_problem", rows, prefer="shortest") == ["trace-1"]


def test_rows_of_no_known_problem_are_grouped_by_their_prompt() -> None:
    prompt = (say("user", "the same"),)
    rows = [a_row(k, problem_id=None, messages=prompt) for k in range(3)]
    rows.append(a_row(9, problem_id=None))
    assert len(kept("per_problem", rows)) == 2


# --- balance -------------------------------------------------------------------------------------


def test_no_stratum_is_larger_than_the_cap() -> None:
    rows = [a_row(k, slice="common" if k < 7 else "rare") for k in range(9)]
    assert len(kept("balance", rows, most=3)) == 5
    assert len(kept("balance", rows)) == 9  # the higher median of 7 and 2 is 7
    assert reasons("balance", rows, most=1)[8] == "slice rare has 1 row already"


def test_strata_may_be_of_several_fields() -> None:
    rows = [a_row(k, slice="ab"[k % 2], origin="rollout" if k < 4 else "import") for k in range(8)]
    assert len(kept("balance", rows, by=["slice", "origin"], most=1)) == 4
    assert len(kept("balance", rows, by="origin", most=1)) == 2


def test_text_beside_reasoning_is_an_answer() -> None:
    both = Message(role="assistant", parts=(Reasoning(text="hm"), Text(text="yes")))
    assert reasons("fidelity", [a_row(1, completion=both)]) == [None]
