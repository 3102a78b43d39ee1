import random

import numpy as np
import pytest

from flywheel.records import say
from flywheel.rows import TrainingRow
from storage.near import PLACES, bands_for, nearly, signatures
from tests.storage.rows_for_curation import a_row, judged

CHANCE = random.Random(7)


def a_text(words: int = 60) -> str:
    return " ".join(f"w{CHANCE.randrange(5000)}" for _ in range(words))


def edited(text: str, places: int) -> str:
    words = text.split()
    for at in CHANCE.sample(range(len(words)), places):
        words[at] = f"e{at}"
    return " ".join(words)


def lines(texts: list[str]) -> np.ndarray:
    return np.stack([np.frombuffer(one or b"", np.uint16) for one in signatures(texts)])


def test_signatures_agree_as_often_as_the_trigrams_jaccard_says() -> None:
    off = []
    for places in (0, 1, 2, 4):
        for _ in range(10):
            text = a_text(100)
            other = edited(text, places)
            one, two = (
                {tuple(words[at : at + 3]) for at in range(len(words) - 2)}
                for words in (text.split(), other.split())
            )
            real = len(one & two) / len(one | two)
            first, second = lines([text, other])
            off.append(float((first == second).mean()) - real)
    assert abs(np.mean(off)) < 0.02 and np.std(off) < 0.05


def test_a_signature_is_its_own_texts_alone_and_short_ones_have_none() -> None:
    text = "one two three four"
    assert signatures(["", "one two", text])[:2] == [None, None]
    assert signatures([a_text(), text])[1] == signatures([text])[0]
    # It is kept in files and compared between processes.
    assert (signatures([text])[0] or b"")[:8].hex() == "9b865c21f5405b9c"


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_bands_find_what_lies_on_the_threshold(threshold: float) -> None:
    bands, rows = bands_for(threshold)
    assert bands * rows <= PLACES
    assert 1 - (1 - threshold**rows) ** bands >= 0.99


def test_copies_are_found_among_many_and_what_comes_first_is_kept() -> None:
    texts = [a_text() for _ in range(300)]
    copies = [edited(texts[number], 1) for number in range(40)]
    found = nearly(lines([*texts, *copies]), 0.8)
    assert (found.of[:300] == -1).all()
    hits = [found.of[300 + number] == number for number in range(40)]
    assert sum(hits) >= 39
    assert found.alike[300:].max() <= 1 and found.alike[:300].max() == 0


def test_a_chain_of_small_steps_does_not_take_what_is_unlike_its_beginning() -> None:
    text = a_text(100)
    chain = [text]
    for step in range(10):
        words = chain[-1].split()
        words[step * 10 : step * 10 + 3] = ["x", "y", f"z{step}"]
        chain.append(" ".join(words))
    found = nearly(lines(chain), 0.8)
    kept = [number for number, of in enumerate(found.of.tolist()) if of == -1]
    assert kept[0] == 0 and 2 <= len(kept) <= 5
    assert all(found.of[at] in kept for at in range(len(chain)) if at not in kept)


def a_said(k: int, text: str, answer: str = "It is on its way.", **changed: object) -> TrainingRow:
    return a_row(k, text=text, completion=say("assistant", answer), **changed)


def test_of_rows_that_say_nearly_the_same_the_one_that_is_worth_most_stays() -> None:
    text = a_text()
    bare = a_said(1, text, tokens=None)
    whole = a_said(2, edited(text, 1))
    other = a_said(3, a_text())
    reasons = judged("near_duplicates", [bare, whole, other])
    assert reasons[1:] == [None, None]
    assert reasons[0] and reasons[0].endswith("the same as trace trace-2")


def test_labels_are_told_apart_and_prompts_can_be_compared_alone() -> None:
    text = a_text()
    good = a_said(1, text, label="desirable")
    bad = a_said(2, text, label="undesirable")
    assert judged("near_duplicates", [good, bad]) == [None, None]
    one, two = a_said(1, text, a_text(200)), a_said(2, text, a_text(200))
    assert judged("near_duplicates", [one, two]) == [None, None]
    assert judged("near_duplicates", [one, two], of="prompt")[0] is None
    assert judged("near_duplicates", [one, two], of="prompt")[1] is not None
