"""Logic, arithmetic, algorithms, graphs and games out of reasoning-gym, judged by its verifiers.

Which generators and how hard: `tasks.options.tasks`, such as {"chain_sum": {"max_terms": 6}}. The
answer is read between <answer> tags, as the generators' own users ask for it; without tags it is
the whole text. Some verifiers give partial credit for a wrong answer: only full marks count.
"""

import importlib.util
import re
from collections.abc import Sequence

import msgspec

from environments.define import Environment, Ungraded
from environments.marks import metric, reward
from environments.tasksets.contract import TaskSet
from environments.tasksets.reasoning_gym import score
from flywheel.errors import FlywheelError
from flywheel.records import Choice, Message, Problem, say

HOW = "Think first. Then write the final answer alone between <answer> and </answer>."
GENERATORS = (
    "basic_arithmetic",
    "chain_sum",
    "base_conversion",
    "number_sorting",
    "spell_backward",
    "letter_counting",
    "family_relationships",
    "propositional_logic",
    "shortest_path",
    "countdown",
)
FULL = 1.0
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_EXAMPLES = ("example_answer", "possible_answer", "solution")
"""Where items without an answer keep one that is right."""


class Reasoning(Environment):
    """Slices: the generators."""

    tasks = TaskSet(
        kind="reasoning_gym",
        near_duplicate=None,
        options={"tasks": {name: {} for name in GENERATORS}, "items": 40},
    )

    def lacks(self) -> str | None:
        here = importlib.util.find_spec("reasoning_gym") is not None
        return None if here else "reasoning-gym is not here: make install-reasoning"

    def posed(self, problem: Problem) -> Problem:
        """With how the answer is to be written."""
        return msgspec.structs.replace(problem, messages=(say("system", HOW), *problem.messages))

    @reward(truth=False)
    def solved(self, answer: str, choice: Choice, problem: Problem) -> bool:
        """Full marks of the generator's own verifier; problems without a stated answer as well."""
        return choice.finish_reason == "stop" and verified(answer, problem) >= FULL

    @metric
    def credit(self, answer: str, problem: Problem) -> float:
        """What the verifier says, partial credit included."""
        return verified(answer, problem)

    @metric
    def in_form(self, answer: str) -> bool:
        return len(_ANSWER.findall(answer)) == 1

    def gold(self, problem: Problem) -> str | list[Message] | None:
        answer = problem.answer
        if answer is None:
            told = problem.attributes["entry"].get("metadata") or {}
            answer = next((told[key] for key in _EXAMPLES if isinstance(told.get(key), str)), None)
        return None if answer is None else f"So it is this.\n<answer>{answer}</answer>"

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """Words, nothing, and the right answer with another after it."""
        gold = problem.answer or ""
        return (
            "<answer>none of these</answer>",
            "<answer></answer>",
            f"<answer>{gold}</answer> or <answer>rather not</answer>",
        )


def verified(answer: str, problem: Problem) -> float:
    """The verifier's word on the last tagged answer, or on the whole text.

    Raises:
        Ungraded: the generator cannot be had here.
    """
    found = _ANSWER.findall(answer)
    said = (found[-1] if found else answer).strip()
    try:
        return score(said, problem)
    except FlywheelError as error:
        raise Ungraded(str(error)) from error
    except Exception:  # an answer that a verifier cannot read is wrong, however it fails on it
        return 0.0
