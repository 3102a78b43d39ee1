"""A teacher's logprobs of the student's own tokens, with and without a hint before them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from flywheel.errors import BadRecord, UsageError
from flywheel.records import Sampling, say
from flywheel.train_section import TrainSection
from tests.trainer.playing import PROBLEM, group, played, rewarded
from trainer.algorithms.contract import Context, Group, Pair
from trainer.algorithms.distill import distill
from trainer.algorithms.self_distill import filled, self_distill
from trainer.render import Rendering

PROMPT = (1, 40, 41)
TURNS = [(PROMPT, (50, 2)), ((*PROMPT, 50, 2, 42), (51, 52, 2))]


class Teacher:
    """Says of each id its negative thousandth, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Pair] = []

    def __call__(self, pairs: Sequence[Pair]) -> list[list[float]]:
        self.asked += pairs
        return [[-token / 1000 for token in completion] for _, completion in pairs]


def context(rendering: Rendering, teacher: Any, algorithm: str = "distill", **more: Any) -> Context:
    settings = {"algorithm": algorithm, "teacher": {"hint": "It is {answer}."}, **more}
    return Context(rendering, TrainSection.model_validate(settings), teacher)


def ungraded(rendering: Rendering, **more: Any) -> Group:
    return group([played("t", TURNS, rendering, **more)], [rewarded("t", None)])


def test_every_sampled_token_has_the_teachers_logprob_and_needs_no_reward(
    rendering: Rendering,
) -> None:
    teacher = Teacher()
    (sample,) = distill([ungraded(rendering)], context(rendering, teacher)).samples
    assert sample.token_ids == (*PROMPT, 50, 2, 42, 51, 52, 2)
    assert sample.teacher_logprobs == (0, 0, 0, -0.05, -0.002, 0, -0.051, -0.052, -0.002)
    assert sample.weights == {"distill": (0, 0, 0, 1, 1, 0, 1, 1, 1)}
    assert sample.behaviour_logprobs and sample.behaviour_logprobs[3] == pytest.approx(-0.5)
    # One pass for all of the path's turns.
    assert teacher.asked == [(PROMPT, (50, 2, 42, 51, 52, 2))]


def test_the_hint_stands_before_the_very_tokens_of_the_student(rendering: Rendering) -> None:
    teacher = Teacher()
    made = ungraded(rendering)
    wanted = context(rendering, teacher, "self_distill")
    (sample,) = self_distill([made], wanted).samples
    ((prompt, completion),) = teacher.asked
    hint = rendering.after([say("system", "It is 1 2.")], ())
    assert rendering.decode(hint) == "<|im_start|>system\nIt is 1 2.<|im_end|>\n"
    assert list(prompt) == [*hint, *PROMPT] and completion == (50, 2, 42, 51, 52, 2)
    assert sample.token_ids[:3] == PROMPT, "the student never reads the hint"


def test_a_problem_without_what_the_hint_names_is_refused(rendering: Rendering) -> None:
    made = ungraded(rendering)
    blank = msgspec.structs.replace(made.problem, answer=None)
    made = msgspec.structs.replace(made, problem=blank)
    prepared = self_distill([made], context(rendering, Teacher(), "self_distill"))
    assert not prepared.samples and "names {answer}" in prepared.refused[0][1]


def test_a_hint_is_filled_with_the_problems_own_fields_and_nothing_else() -> None:
    problem = msgspec.structs.replace(PROBLEM, text="2 1", attributes={"steps": ["a", "b"]})
    said = filled("{text}: {steps} -> {answer}, {0.x} { } {}", problem)
    assert said == '2 1: ["a", "b"] -> 1 2, {0.x} { } {}'
    with pytest.raises(BadRecord, match="secret"):
        filled("{secret}", problem)
    assert filled("{answer.__class__}", problem) == "{answer.__class__}"


def test_what_a_teacher_cannot_speak_of_is_refused(rendering: Rendering) -> None:
    wanted = context(rendering, Teacher())
    for more, reason in (
        ({"sampling": Sampling(temperature=0.6)}, "temperature 0.6"),
        ({"sampling": Sampling(top_p=0.5)}, "top_p"),
        ({"tokenizer_digest": "other"}, "tokenizer other"),
        ({"attributes": {"failed": "gone", "failed_by": "infrastructure"}}, "gone"),
    ):
        prepared = distill([ungraded(rendering, **more)], wanted)
        assert not prepared.samples and reason in prepared.refused[0][1]
    short = context(rendering, lambda pairs: [[-1.0] for _ in pairs])
    assert "gave 1 logprobs" in distill([ungraded(rendering)], short).refused[0][1]


def test_settings_that_cannot_work_are_said_before_anything_is_sampled(
    rendering: Rendering,
) -> None:
    with pytest.raises(ValueError, match="hint"):
        TrainSection.model_validate({"algorithm": "self_distill"})
    with pytest.raises(ValueError, match="temperature 1"):
        TrainSection.model_validate({"algorithm": "distill", "rl": {"temperature": 0.7}})
    with pytest.raises(UsageError, match="asks a teacher"):
        distill([ungraded(rendering)], context(rendering, None))
