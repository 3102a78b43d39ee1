"""Token counts: every vendor's convention gives the same totals."""

import pytest

from flywheel.records import Usage
from storage.formats.parsed import Rest
from storage.formats.usage import count, read_usage, settle


def usage(value: object, answered: bool = True) -> Usage:
    return read_usage(value, answered, Rest(lambda data: "", False), "usage")


def test_subset_and_additive_conventions_agree():
    openai = {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "total_tokens": 105,
        "prompt_tokens_details": {"cached_tokens": 90},
    }
    anthropic = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}
    responses = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 90},
        "output_tokens": 5,
        "total_tokens": 105,
    }
    same = Usage(input_tokens=100, cached_input_tokens=90, output_tokens=5)
    assert usage(openai) == usage(anthropic) == usage(responses) == same


def test_tokens_written_to_a_cache_are_prompt_tokens():
    written = {"input_tokens": 4, "cache_creation_input_tokens": 1163, "cache_read_input_tokens": 0}
    assert usage({**written, "output_tokens": 7}).input_tokens == 1167


def test_a_stated_total_decides_over_the_vendor():
    inclusive = {"given": 1167, "output": 202, "cached": 1163, "total": 1369}
    assert settle(inclusive, answered=True, additive=True).input_tokens == 1167
    beside = {"given": 179, "output": 35, "reasoning": 64, "total": 278}
    assert settle(beside, answered=True).output_tokens == 99


def test_more_reasoning_than_output_means_beside():
    assert settle({"given": 1, "output": 2, "reasoning": 9}, answered=True).output_tokens == 11


def test_zeros_without_an_answer_are_zeros():
    zeros = {"prompt_tokens": 0, "completion_tokens": 0}
    assert usage(zeros, answered=False) == Usage(input_tokens=0, output_tokens=0)
    assert usage(zeros).reason == "reported as zero beside an answer"


def test_what_is_only_half_said_says_so():
    assert usage({"prompt_tokens": 8}) == Usage(input_tokens=8, reason="reported in part")


@pytest.mark.parametrize("value", [None, True, -1, 1.5, "many", 2**60, [], float("inf")])
def test_what_is_no_count_is_unknown(value):
    assert count(value) is None


def test_counts_as_text_and_whole_floats_are_counts():
    assert (count("12"), count(12.0), count(0)) == (12, 12, 0)
