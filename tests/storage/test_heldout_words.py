import random

import numpy as np
import pytest

from flywheel.records import say
from storage.heldout_words import CONTAINED, LONG, REPEATED, HeldoutWords
from storage.leakage import Heldout
from storage.shingles import shingled
from tests.storage.rows_for_curation import a_problem, a_row

WORDS = [f"w{number}" for number in range(300)]


def a_text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choice(WORDS[: dice.choice((12, 300))]) for _ in range(words))


def grams(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + 3]) for at in range(len(words) - 2)}


def leaks(text: str, other: str, threshold: float) -> float | None:
    """By the definition, over sets."""
    one, two = grams(text), grams(other)
    shared = len(one & two)
    if not shared:
        return None
    jaccard = shared / len(one | two)
    inside = shared / min(len(one), len(two))
    contained = min(len(one), len(two)) >= CONTAINED
    score = max(jaccard, inside / (2 - inside)) if contained else jaccard
    repeated = len(two) >= LONG and shared / len(two) >= REPEATED
    return score if score >= threshold - 1e-6 or repeated else None


@pytest.mark.parametrize("threshold", [0.3, 0.7, 0.95])
def test_what_leaks_is_exactly_what_the_definition_says(threshold: float) -> None:
    dice = random.Random(3)
    heldout = sorted({a_text(dice, dice.choice((4, 9, 30, 60))) for _ in range(60)})
    texts = []
    for _ in range(120):
        words = dice.choice(heldout).split()
        for _ in range(dice.choice((0, 1, 3, 8))):
            words[dice.randrange(len(words))] = "other"
        around = [a_text(dice, dice.choice((1, 20))) for _ in range(2)]
        texts.append(" ".join([around[0], *words, around[1]] if dice.random() < 0.5 else words))
    # Each is of an environment of its own, so that nothing is a template.
    index = HeldoutWords([(text, text, text) for text in heldout], threshold)
    none = np.zeros(len(texts), bool)
    found = {near.place: near for near in index.near(shingled(texts), only_within=none)}
    for place, text in enumerate(texts):
        scores = {other: score for other in heldout if (score := leaks(text, other, threshold))}
        assert (place in found) == bool(scores), (text, scores)
        if scores:
            assert found[place].score == pytest.approx(max(scores.values()))
            assert scores[found[place].key] == pytest.approx(max(scores.values()))


def test_a_tenth_of_the_words_edited_is_found_whatever_the_project_says() -> None:
    dice = random.Random(5)
    caught = 0
    for _ in range(25):
        words = [f"x{dice.randrange(9999)}" for _ in range(30)]
        problem = a_problem(" ".join(words))
        for at in dice.sample(range(30), 3):
            words[at] = f"y{at}"
        caught += len(Heldout([problem], 1.0).leaks([a_row(1, text=" ".join(words))]))
    assert caught == 25


def test_a_text_that_is_spread_over_turns_or_was_an_earlier_one_is_found() -> None:
    text = " ".join(f"x{number}" for number in range(30))
    heldout = Heldout([a_problem(text), a_problem("where is my parcel")])
    parts = [text[:40], text[41:80], text[81:]]
    spread = tuple(one for part in parts for one in (say("user", part), say("assistant", "And?")))
    earlier = (say("user", "Where is my parcel?"), say("assistant", "Here."), say("user", "Thanks"))
    polite = (say("user", "yes please"), say("assistant", "Done."), say("user", "something else"))
    rows = [
        a_row(1, messages=spread, text=parts[-1]),
        a_row(2, messages=earlier, text="Thanks"),
        a_row(3, messages=polite, text="something else"),
    ]
    assert [leak.place for leak in heldout.leaks(rows)] == [0, 1]
    # What everybody says in passing is nobody's problem.
    assert Heldout([a_problem("yes please")]).leaks(rows[2:]) == []


def test_a_template_that_many_held_out_texts_share_is_not_compared() -> None:
    form = "Hello, I have ordered {} at your shop and would like to know when it is going to arrive"
    heldout = Heldout([a_problem(form.format(f"one{k} two{k} three{k}")) for k in range(20)], 0.5)
    other, same = (
        a_row(1, text=form.format("a big kettle")),
        a_row(2, text=form.format("one7 two7 three7")),
    )
    assert [leak.place for leak in heldout.leaks([other, same])] == [1]
    alone = Heldout([a_problem(form.format("one7 two7 three7"))], 0.5)
    assert [leak.place for leak in alone.leaks([other, same])] == [0, 1], "one text is no template"
