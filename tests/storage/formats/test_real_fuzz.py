"""Real rows of every format, bent: each is read or refused with its reason. Skipped without
../shared; `benchmarks/fuzz.py` does it for as long as one likes."""

import random
from pathlib import Path

import pytest

from benchmarks.fuzz import bent, chat_rows, one_input, seeds


@pytest.mark.slow
def test_real_rows_that_are_bent_are_read_or_refused(shared: Path):
    found = [*seeds(shared, most=4), *chat_rows(40)]
    chance = random.Random(7)
    understood = sum(one_input(data) > 0 for data in found)
    assert understood > len(found) * 0.9
    for number in range(3 * len(found)):
        one_input(bent(found[number % len(found)], chance))
