"""What a judge replies is the object that was asked for, or nothing; votes make one verdict."""

import json

import pytest

from environments.judges.questions import Question
from environments.judges.verdicts import Fits, combined, read

SCORE = Question("score", "r", ("text",))
PAIR = Question("compare", "r", ("one", "two"))
WHOLE = {"check": SCORE.check, "reason": "so", "score": 3}


def test_the_object_that_was_asked_for_is_read() -> None:
    assert read(SCORE, json.dumps(WHOLE)) == Fits(0.75, "so")
    assert read(SCORE, f"<think>3? 4?</think>\n```json\n{json.dumps(WHOLE)}\n```\n")[0] == 0.75
    for said, value in (("first", 1.0), ("neither", 0.5), ("second", 0.0)):
        text = json.dumps({"check": PAIR.check, "reason": "", "better": said})
        assert read(PAIR, text) == Fits(value, "")


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "3", "[]", "null", '"3"', json.dumps(WHOLE)[:-1],
        "Verdict: " + json.dumps(WHOLE),
        json.dumps(WHOLE) + json.dumps(WHOLE), json.dumps(WHOLE)[:-1] + ', "score": 4}',
        *(json.dumps(WHOLE | {"score": said}) for said in (
            5, -1, 2.5, True, "3", None, [3], float("nan"), float("inf"), 10**400, {"value": 3},
        )),
        json.dumps(WHOLE | {"more": 1}), json.dumps(WHOLE | {"reason": 3}),
        json.dumps(WHOLE | {"check": "00000000"}), json.dumps(WHOLE | {"check": None}),
        json.dumps({"score": 3}),
        json.dumps({"check": SCORE.check, "reason": "", "better": "first"}),
        "[" * 100_000, '{"check": "\\ud800"}', "\x00",
    ],
    ids=range(30),
)  # fmt: skip
def test_anything_else_is_no_verdict(text: str) -> None:
    why = read(SCORE, text)
    assert isinstance(why, str) and why


def test_a_pair_has_three_answers() -> None:
    for said in ("First", "both", 1, None, ["first"]):
        text = json.dumps({"check": PAIR.check, "reason": "", "better": said})
        assert isinstance(read(PAIR, text), str)


def test_votes_are_a_mean_or_what_most_say() -> None:
    votes = [Fits(1.0, "a"), Fits(0.25, "b"), Fits(0.25, "c")]
    assert combined(votes, majority=False) == Fits(0.5, "b")
    assert combined(votes, majority=True) == Fits(0.25, "b")
    assert combined(votes[:2], majority=True).value == 0.625  # as many say one as the other
