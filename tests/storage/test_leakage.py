import random
from collections.abc import Iterable, Sequence

import pytest
from msgspec.structs import replace

from flywheel.records import Message, Problem, Reasoning, ToolResult, say
from flywheel.rows import TrainingRow
from storage import row_texts
from storage.leakage import Heldout, Leak
from tests.storage.rows_for_curation import a_problem, a_row

MAIL = (
    "Hello, I ordered a blue kettle two weeks ago and it still has not arrived at my house, "
    "could you please find out where the parcel is and tell me when I can expect it"
)


def leaks_of(
    rows: Sequence[TrainingRow], heldout: Iterable[Problem], near_duplicate: float = 0.7
) -> list[Leak]:
    return Heldout(heldout, near_duplicate).leaks(rows)


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
    [leak] = leaks_of([row], [a_problem("something else"), problem])
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
    assert leaks_of([row], [problem]) == []


def test_the_prompt_that_all_share_is_not_compared() -> None:
    shared = "You sort mail. Answer with a JSON object of queue and order. Mail follows: " * 3
    row = a_row(1, text="my tea is cold", messages=(say("user", shared + "my tea is cold"),))
    problem = a_problem("invoice is wrong", messages=(say("user", shared + "invoice is wrong"),))
    assert leaks_of([row], [problem]) == []


def test_without_a_text_of_its_own_the_last_user_message_is_compared() -> None:
    row = a_row(1, text="", messages=(say("user", MAIL), say("assistant", "?")))
    [leak] = leaks_of([row], [a_problem("", messages=(say("user", f"{MAIL} now"),))])
    assert leak.by == "near_duplicate"


def test_the_threshold_decides_and_the_score_is_the_jaccard() -> None:
    row = a_row(1, text="a b c d e f")  # abc bcd cde def
    problem = a_problem("a b c d e g")  # abc bcd cde deg
    [leak] = leaks_of([row], [problem], near_duplicate=0.6)
    assert leak.score == pytest.approx(3 / 5)
    assert leaks_of([row], [problem], near_duplicate=0.61) == []


def test_containment_is_measured_on_the_jaccards_scale() -> None:
    inner = "a b c d e f g h i j k l"  # 10 trigrams, all within the longer text
    [leak] = leaks_of([a_row(1, text=inner + " x y z" * 20)], [a_problem(inner)], 1.0)
    assert leak.score == pytest.approx(1.0)
    half = inner.replace("f", "?").replace("g", "-")  # words 6 and 7 are gone: 6 of 10 stay
    assert leaks_of([a_row(1, text=inner + " x y z" * 20)], [a_problem(half)], 0.7) == []


def test_the_nearest_problem_is_named_whatever_the_order() -> None:
    far, near = a_problem(with_replaced(MAIL, 0.05)), a_problem(MAIL + " today")
    row = a_row(1, text=MAIL)
    for heldout in ([far, near], [near, far]):
        [leak] = leaks_of([row], heldout, 0.5)
        assert leak.problem_id == near.id


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [a_row(k, text=with_replaced(MAIL, 0.02 * (k % 10), seed=k)) for k in range(40)]
    heldout = [a_problem(MAIL), a_problem("quite another text than that")]
    whole = leaks_of(rows, heldout)
    assert 0 < len(whole) < 40
    monkeypatch.setattr(row_texts, "CHUNK_ROWS", 3)
    assert leaks_of(rows, heldout) == whole
    monkeypatch.setattr(row_texts, "CHUNK_CHARACTERS", 1)
    assert leaks_of(rows, heldout) == whole


def test_the_measured_words_replaced_are_on_the_right_side_of_the_threshold() -> None:
    """Ten percent of words replaced leaves a Jaccard near 0.57, twenty percent near 0.35."""
    for share, low, high in ((0.1, 0.45, 0.7), (0.2, 0.2, 0.45)):
        scores = []
        for seed in range(20):
            row = a_row(1, text=with_replaced(" ".join(f"w{k}" for k in range(60)), share, seed))
            [leak] = leaks_of([row], [a_problem(" ".join(f"w{k}" for k in range(60)))], 0.05)
            scores.append(leak.score)
        assert low < sum(scores) / len(scores) < high


@pytest.mark.parametrize("text", [MAIL, "where is my blue kettle now"])
@pytest.mark.parametrize(
    "disguised",
    [
        lambda text: " ".join(f"_{word}_" for word in text.split()),
        lambda text: "&nbsp;".join(f"<b>{word}</b>" for word in text.split()),
        lambda text: text.translate(str.maketrans("aeopc", "\u0430\u0435\u043e\u0440\u0441")),
        lambda text: "\u200b".join(text).replace("a", "\u00e0"),
        lambda text: text.replace(" ", "\\n"),
        lambda text: text.replace(" ", ""),
        lambda text: " ".join(sorted(text.replace(",", "").split())),
    ],
)
def test_no_dress_hides_a_text(text: str, disguised) -> None:  # type: ignore[no-untyped-def]
    rows = [a_row(1, text=disguised(text))]
    assert len(leaks_of(rows, [a_problem(text)])) == 1


def test_a_text_is_found_wherever_it_stands() -> None:
    asked = say("user", "a question of my own")
    result = Message(role="tool", parts=(ToolResult(content=f"Found: {MAIL}"),))
    thought = Message(role="assistant", parts=(Reasoning(text=f"He said: {MAIL}"),))
    prompts = [
        (say("system", f"An example: {MAIL}"), asked),
        (asked, result),
        (asked, thought, asked),
        (say("user", f"a question of my own. {MAIL}"),),
    ]
    rows = [a_row(k, text=asked.text, messages=one) for k, one in enumerate(prompts)]
    rows.append(a_row(9, text=asked.text, completion=say("assistant", MAIL)))
    assert len(leaks_of(rows, [a_problem(MAIL)])) == len(rows)
    # What every prompt is headed by, the held-out ones too, is no leak.
    headed = a_problem(MAIL, messages=(say("system", f"An example: {MAIL}"), say("user", MAIL)))
    assert [leak.place for leak in leaks_of(rows, [headed])] == [1, 2, 3, 4]


def test_a_copy_of_a_held_out_conversation_is_found_by_its_earlier_turns() -> None:
    turns = (say("user", MAIL), say("assistant", "It is late."), say("user", "Yes, do"))
    heldout = [a_problem("Yes, do", messages=turns), a_problem("another one")]
    longer = (*turns, say("assistant", "Done."), say("user", "and so on"))
    rows = [
        a_row(1, messages=longer, text="and so on"),
        a_row(2, messages=turns[:1], text=MAIL),
        a_row(3, messages=(say("user", "Yes, do it"),), text="Yes, do it"),
    ]
    assert [leak.place for leak in leaks_of(rows, heldout)] == [0, 1]
    # Examples that all prompts show are nobody's conversation.
    shown = [a_problem(f"one {k}", messages=(*turns, say("user", f"one {k}"))) for k in range(3)]
    assert leaks_of(rows[:2], shown) == []


def test_what_another_project_holds_out_often_hides_nothing() -> None:
    own = [a_problem(f"{MAIL} {k}" if k == 0 else f"w{k} x{k} y{k}") for k in range(8)]
    often = [replace(a_problem(f"{MAIL} {k}"), environment="other") for k in range(9)]
    row = a_row(1, text=with_replaced(MAIL, 0.05))
    assert leaks_of([row], often) == []
    assert leaks_of([row], [*own, *often])[0].problem_id == own[0].id
