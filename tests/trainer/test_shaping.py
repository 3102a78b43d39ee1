"""Right answers that took more than their group's right ones earn less; wrong ones stay."""

import math
from typing import Any

import pytest

from flywheel.train_section import RLSection, TrainSection
from tests.trainer.playing import Turn, group, played, rewarded
from trainer.algorithms.contract import Context, Group
from trainer.algorithms.grpo import grpo
from trainer.algorithms.shaping import shaped
from trainer.render import Rendering

PROMPT = (1, 40)


def lengths(rendering: Rendering, taken: list[tuple[int, float]], steps: bool = False) -> Group:
    """One rollout for each (sampled tokens, reward)."""
    names = [f"t{k}" for k in range(len(taken))]
    finished = [
        played(name, [(PROMPT, (50,) * (size - 1) + (2,))], rendering)
        for name, (size, _) in zip(names, taken, strict=True)
    ]
    grades = [
        rewarded(name, value, {"call-0": value} if steps else None)
        for name, (_, value) in zip(names, taken, strict=True)
    ]
    return group(finished, grades)


def test_the_papers_formula_by_hand(rendering: Rendering) -> None:
    # Right answers have 2, 4 and 6 tokens: mean 4, standard deviation √(8/3).
    made = shaped(
        lengths(rendering, [(2, 1.0), (4, 1.0), (6, 1.0), (3, 0.0)]), RLSection(length_penalty=0.4)
    )
    z = 2 / math.sqrt(8 / 3)
    expected = [1 - 0.4 / (1 + math.exp(z)), 0.8, 1 - 0.4 / (1 + math.exp(-z)), 0.0]
    assert [one.reward for one in made.rollouts] == pytest.approx(expected)


def test_without_a_penalty_or_a_right_answer_nothing_changes(rendering: Rendering) -> None:
    made = lengths(rendering, [(2, 1.0), (6, 1.0)])
    assert shaped(made, RLSection()) is made
    wrong = lengths(rendering, [(2, 0.0), (6, -1.0)])
    assert shaped(wrong, RLSection(length_penalty=0.5)) is wrong


def test_a_long_right_answer_still_earns_more_than_a_wrong_one(rendering: Rendering) -> None:
    made = lengths(rendering, [(2, 1.0)] * 20 + [(500, 1.0), (2, 0.0)])
    rewards = [one.reward for one in shaped(made, RLSection(length_penalty=0.99)).rollouts]
    assert min(one for one in rewards[:-1] if one is not None) > 0 == rewards[-1]


def test_what_all_got_right_is_told_apart_by_length(rendering: Rendering) -> None:
    made = lengths(rendering, [(2, 1.0), (6, 1.0)])
    settings = TrainSection(algorithm="grpo", rl=RLSection(length_penalty=0.2))
    short, long = grpo([made], Context(rendering, settings)).samples
    assert max(short.advantages or ()) > 0 > min(long.advantages or ())


def test_the_values_of_steps_are_shaped_with_their_answer(rendering: Rendering) -> None:
    plain = lengths(rendering, [(2, 1.0), (6, 1.0)], steps=True)
    made = shaped(plain, RLSection(length_penalty=0.5))
    for one in made.rollouts:
        assert one.values["call-0"] == one.reward != 1.0


def test_calls_count_whatever_their_length(rendering: Rendering) -> None:
    one: list[Turn] = [(PROMPT, (50, 51, 52, 2))]
    two: list[Turn] = [(PROMPT, (50, 2)), ((*PROMPT, 50, 2, 42), (51, 2))]
    finished = [played("one", one, rendering), played("two", two, rendering)]
    made = group(finished, [rewarded("one", 1.0), rewarded("two", 1.0)])
    few, many = (each.reward for each in shaped(made, RLSection(call_penalty=0.4)).rollouts)
    assert few == pytest.approx(1 - 0.4 / (1 + math.e))
    assert many == pytest.approx(1 - 0.4 / (1 + math.exp(-1)))


def test_penalties_that_could_drown_a_right_answer_are_refused() -> None:
    wrong: dict[str, Any] = {"rl": {"length_penalty": 0.6, "call_penalty": 0.6}}
    with pytest.raises(ValueError, match="below 1"):
        TrainSection.model_validate(wrong)
