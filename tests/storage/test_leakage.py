import random

import pytest

from flywheel.errors import Refused
from flywheel.records import say
from storage import leakage
from storage.leakage import leakage_check, require_no_leaks
from tests.storage.rows_for_curation import a_problem, a_row

MAIL = (
    "Hello, I ordered a blue kettle two weeks ago and it still has not arrived at my house, "
    "could you please find out where the parcel is and tell me when I can expect it"
)


def with_replaced(text: str, share: float, seed: int = 0) -> str:
    words = text.split()
    for place in random.Random(seed).sample(range(len(words)), round(share * len(words))):
        words[place] = f"other{place}"
    return " ".join(words)


@pytest.mark.parametrize(
    ("row", "problem", "by"),
    [
        (a_row(1, problem_id=a_problem("x y").id), a_problem("x y"), "problem"),
        (a_row(1, conversation="c"), a_problem("x y", conversation="c"), "conversation"),
        (a_row(1, user="u"), a_problem("x y", user="u"), "user"),
        (a_row(1, messages=a_problem("x y").messages), a_problem("x y"), "prompt"),
        (a_row(1, text="Where is\tmy ORDER?"), a_problem("where is my order"), "text"),
        (a_row(1, text="Ok!"), a_problem("ok"), "text"),
        (a_row(1, text="ＷＨＥＲＥ is it"), a_problem("where is it"), "text"),
        (a_row(1, text=MAIL), a_problem(MAIL + " today"), "near_duplicate"),
        (a_row(1, text=f"{MAIL}. {with_replaced(MAIL, 1.0)}"), a_problem(MAIL), "near_duplicate"),
        (a_row(1, text="注文はどこですか今す"), a_problem("注文はどこですか今"), "near_duplicate"),
    ],
)  # fmt: skip
def test_each_way_to_touch_a_heldout_problem_is_found(row, problem, by) -> None:  # type: ignore[no-untyped-def]
    [leak] = leakage_check([row], [a_problem("something else"), problem])
    assert (leak.place, leak.trace_id, leak.problem_id, leak.by) == (0, "trace-1", problem.id, by)
    assert problem.id in leak.reason


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (a_row(1, conversation=None, user=None), a_problem("x y", conversation=None, user=None)),
        (a_row(1, conversation="", user=""), a_problem("x y", conversation="", user="")),
        (a_row(1, text="ok thanks"), a_problem("ok then")),
        (a_row(1, text="ok"), a_problem("ok then")),
        (a_row(1, text=MAIL), a_problem(with_replaced(MAIL, 0.2))),
        # A short phrase inside a long text is a manner of speaking, not a copy.
        (a_row(1, text=MAIL), a_problem("it still has not arrived")),
        # Punctuation alone says nothing.
        (a_row(1, text="..."), a_problem("!!!")),
    ],
)
def test_what_does_not_touch_stays(row, problem) -> None:  # type: ignore[no-untyped-def]
    assert leakage_check([row], [problem]) == []


def test_the_prompt_that_all_share_is_not_compared() -> None:
    shared = "You sort mail. Answer with a JSON object of queue and order. Mail follows: " * 3
    row = a_row(1, text="my tea is cold", messages=(say("user", shared + "my tea is cold"),))
    problem = a_problem("invoice is wrong", messages=(say("user", shared + "invoice is wrong"),))
    assert leakage_check([row], [problem]) == []


def test_without_a_text_of_its_own_the_last_user_message_is_compared() -> None:
    row = a_row(1, text="", messages=(say("user", MAIL), say("assistant", "?")))
    [leak] = leakage_check([row], [a_problem("", messages=(say("user", f"{MAIL} now"),))])
    assert leak.by == "near_duplicate"


def test_the_threshold_decides_and_the_score_is_the_jaccard() -> None:
    row = a_row(1, text="a b c d e f")  # abc bcd cde def
    problem = a_problem("a b c d e g")  # abc bcd cde deg
    [leak] = leakage_check([row], [problem], near_duplicate=0.6)
    assert leak.score == pytest.approx(3 / 5)
    assert leakage_check([row], [problem], near_duplicate=0.61) == []


def test_containment_is_measured_on_the_jaccards_scale() -> None:
    inner = "a b c d e f g h i j k l"  # 10 trigrams, all within the longer text
    [leak] = leakage_check([a_row(1, text=inner + " x y z" * 20)], [a_problem(inner)], 1.0)
    assert leak.score == pytest.approx(1.0)
    half = inner.replace("f", "?").replace("g", "-")  # words 6 and 7 are gone: 6 of 10 stay
    assert leakage_check([a_row(1, text=inner + " x y z" * 20)], [a_problem(half)], 0.7) == []


def test_the_nearest_problem_is_named_whatever_the_order() -> None:
    far, near = a_problem(with_replaced(MAIL, 0.05)), a_problem(MAIL + " today")
    row = a_row(1, text=MAIL)
    for heldout in ([far, near], [near, far]):
        [leak] = leakage_check([row], heldout, 0.5)
        assert leak.problem_id == near.id


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [a_row(k, text=with_replaced(MAIL, 0.02 * (k % 10), seed=k)) for k in range(40)]
    heldout = [a_problem(MAIL), a_problem("quite another text than that")]
    whole = leakage_check(rows, heldout)
    assert 0 < len(whole) < 40
    monkeypatch.setattr(leakage, "CHUNK_ROWS", 3)
    assert leakage_check(rows, heldout) == whole
    monkeypatch.setattr(leakage, "CHUNK_CHARACTERS", 1)
    assert leakage_check(rows, heldout) == whole


def test_the_measured_words_replaced_are_on_the_right_side_of_the_threshold() -> None:
    """Ten percent of words replaced leaves a Jaccard near 0.57, twenty percent near 0.35."""
    for share, low, high in ((0.1, 0.45, 0.7), (0.2, 0.2, 0.45)):
        scores = []
        for seed in range(20):
            row = a_row(1, text=with_replaced(" ".join(f"w{k}" for k in range(60)), share, seed))
            [leak] = leakage_check([row], [a_problem(" ".join(f"w{k}" for k in range(60)))], 0.05)
            scores.append(leak.score)
        assert low < sum(scores) / len(scores) < high


def test_the_gate_refuses_and_names_what_touches_what() -> None:
    problem = a_problem("x y", user="u")
    require_no_leaks([a_row(1)], [problem])
    with pytest.raises(Refused, match=f"1 of 2 rows.*trace-1.*{problem.id}"):
        require_no_leaks([a_row(1, user="u"), a_row(2)], [problem])
    require_no_leaks([], [problem])
    require_no_leaks([a_row(1)], [])
