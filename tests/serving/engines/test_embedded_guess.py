"""Guessing changes how fast answers come, never what they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.errors import CorruptFile
from serving.engines.embedded_batch import Row
from serving.engines.embedded_cache import Prefixes
from serving.engines.embedded_choose import Choosing, generator
from serving.engines.embedded_cohort import Bounds, Cohort
from serving.engines.embedded_guess import Guessing, guessing_of
from serving.engines.embedded_model import Model
from serving.engines.speculative import FILE
from trainer.models import load_base

TINY = Path(__file__).resolve().parents[2] / "sorting" / "base"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(load_base(TINY, threads=1))


def answered(model: Model, guessing: Guessing | None, temperature: float) -> tuple[list[Any], int]:
    """What rows with different prompts, bounds and seeds said, and the passes that it took."""
    said: list[list[tuple[int, float, str | None]]] = [[] for _ in range(6)]
    rows = []
    for number in range(6):

        def deliver(drawn: Any, finish: str | None, to: list[Any] = said[number]) -> None:
            to.append((drawn.id, drawn.logprob, finish))

        prompt = tuple(20 + (i * (number + 1)) % 9 for i in range(10 + 7 * number))
        rows.append(
            Row("base", prompt, Choosing(temperature=temperature), generator(number, 0),
                12 + 5 * number, frozenset((3,)), deliver, seed=number)
        )  # fmt: skip
    cohort = Cohort(model, "base", Prefixes(4096), Bounds(), guessing=guessing)
    cohort.waiting.extend(rows)
    passes = 0
    with torch.inference_mode():
        for _ in cohort.run():
            passes += 1
    return said, passes


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_seed_gives_the_same_answer_in_fewer_passes(
    model: Model, temperature: float
) -> None:
    plain, slow = answered(model, None, temperature)
    guessed, fast = answered(model, Guessing(tokens=4, shortest=1), temperature)
    for one, other in zip(plain, guessed, strict=True):
        assert [(id, end) for id, _, end in one] == [(id, end) for id, _, end in other]
        assert [p for _, p, _ in one] == pytest.approx([p for _, p, _ in other], abs=1e-4)
    assert fast <= slow
    if not temperature:
        assert fast < 0.8 * slow


def test_what_followed_the_last_time_is_guessed() -> None:
    guessing = Guessing(tokens=3, longest=3, shortest=2)
    assert guessing.guesses([((1, 2, 3, 4, 5, 6, 1), (2, 3))]) == [[4, 5, 6]]
    assert guessing.guesses([((9, 2, 3, 7, 8, 2, 3, 5), (2, 3))]) == [[5, 2, 3]], "the latest"
    assert guessing.guesses([((1, 2, 3), (4,))]) is None
    assert guessing.guesses([((1, 1, 1), (1,)), ((1, 2), (3,))]) == [[1], []]
    assert guessing.guesses([((1,), ())]) is None
    crowd = [((1, 2, 1), (2,))] * 40
    assert guessing.guesses(crowd) is None, "many rows are worth more than guesses"


def test_the_file_beside_the_weights_is_vllms(tmp_path: Path) -> None:
    assert guessing_of(tmp_path) is None
    said = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    (tmp_path / FILE).write_text(json.dumps(said))
    assert guessing_of(tmp_path) == Guessing(tokens=5, longest=4, shortest=2)
    for bad in ({**said, "method": "eagle"}, {**said, "num_speculative_tokens": 99}, [], {}):
        (tmp_path / FILE).write_text(json.dumps(bad))
        with pytest.raises(CorruptFile):
            guessing_of(tmp_path)
