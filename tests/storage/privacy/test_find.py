"""What is planted is found, by what it is; what only looks so is not."""

import itertools
import math
import time
from collections import Counter

import pytest

from benchmarks.privacy_planted import clean, planted
from flywheel.data_section import PrivacySection
from storage.privacy.clean import Cleaning
from storage.privacy.find import KINDS, RECOGNISERS, find, policy_of


def test_every_kind_is_found_and_little_else_is() -> None:
    missed, of = Counter[str](), Counter[str]()
    for text, kind, value in planted(20):
        cleaning = Cleaning()
        of[kind] += 1
        missed[kind] += value in cleaning.text(text) or not cleaning.counts[kind]
    assert set(of) == set(KINDS)
    assert not +missed
    flagged = [text for text, _, _ in clean(10) if find(text)]
    assert len(flagged) <= 2, flagged


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Grüße,\nPeter Müller", {"name": "Peter Müller"}),
        ("4111111111111112 is no card, 4111111111111111 is", {"card": "4111111111111111"}),
        ("v1.2.3.4 on 127.0.0.1, 10.1.2.3 and 9.9.9.9.", {"ip": "9.9.9.9"}),
        ("ann%40example.com", {"email": "ann%40example.com"}),
        ("ann (at) example (dot) com", {"email": "ann (at) example (dot) com"}),
        ("https://u:p4ss@x.de/ and https://x.de:80/@a", {"credential": "u:p4ss"}),
        ('"password": "swordfish"', {"password": "swordfish"}),
        ("sk-xxxxxxxxxxxxxxxxxxxxxxxx and eyJhbGciOi.eyJzdWIiOi", {}),
        ("passport number: C01X00T47", {"national_id": "C01X00T47"}),
        ('[{"name": "Coffee Maker", "product_id": "6942297802"}]', {}),
        ("12 rue de la Paix, 75002 Paris", {"address": "12 rue de la Paix, 75002 Paris"}),
        ("٠١٢٣ İstanbul ǅ " * 40, {}),
        ("", {}),
    ],
)
def test_one_by_one(text: str, said: dict[str, str]) -> None:
    assert {kind: text[start:end] for start, end, kind in find(text)} == said


def test_a_project_says_what_is_looked_for_and_what_is_no_secret() -> None:
    text = "help@ours.example, ann@else.example, 4111 1111 1111 1111"
    section = PrivacySection(kinds=("email",), allow=("@OURS.example",))
    assert [text[a:b] for a, b, _ in find(text, policy_of(section))] == ["ann@else.example"]
    only = PrivacySection(allow=("4111 1111 1111 1111",))
    assert [kind for _, _, kind in find(text, policy_of(only))] == ["email", "email"]


@pytest.mark.parametrize(
    ("head", "again", "tail"),
    [("", "a", ""), ("", "1 ", ""), ("", "a@", ""), ("", "a.b", ""), ("", "Aa ", ""),
     ("", "key: ", ""), ("", "eyJ", ""), ("", "-----BEGIN PRIVATE KEY-----", ""), ("", "+1-", ""),
     ("A" * 50, "b ", ""), ("", "my name is A", ""), ("", "://a:", ""), ("", "1:", ""),
     ("", "12 rue de la ", ""), ("", "Aa", " straße 1"), ("regards,", "\n", ""), ("born", " ", "1"),
     ("name:", " ", "dear\n \n")],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_no_text_is_gone_over_again_from_each_place(head: str, again: str, tail: str) -> None:
    """A text eight times as long takes eight times the work, not 64 times."""

    def work(size: int) -> float:
        least = math.inf
        for more in range(3):  # a text that came before is remembered
            text = head + again * (size // len(again) + more) + tail
            begun = time.thread_time()
            find(text)
            least = min(least, time.thread_time() - begun)
        return least

    assert work(64_000) < 24 * work(8_000)


def test_no_two_places_overlap() -> None:
    text = " ".join(text for text, _, _ in planted(3))
    places = find(text)
    assert all(a.end <= b.start for a, b in itertools.pairwise(places))
    assert {kind for kinds, _ in RECOGNISERS for kind in kinds} == set(KINDS)
