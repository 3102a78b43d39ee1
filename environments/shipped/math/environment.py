"""Problems whose answer is one number: word problems and sums made from a seed, and GSM8K.

GSM8K is for evaluation only: its problems are held out, whatever else is asked. Training problems
are made; reasoning-gym's generators (`tasks.kind = "reasoning_gym"`) may take their place.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path

import msgspec

from environments.define import Environment
from environments.marks import Ungraded, metric, reward
from environments.shipped.math.made import made
from environments.shipped.math.numbers import final_number, marked, numbers_in
from environments.tasksets import gsm8k
from environments.tasksets.contract import Drawn, Given, Options, Read, Source, TaskSet
from environments.tasksets.settle import settle
from environments.tasksets.table import MADE
from flywheel.records import Choice, Message, Problem, say

COUNT = 400
HOW = "Solve the problem step by step. Write the answer alone in the last line, as `#### number`."


class Math(Environment):
    """Slices: words, arithmetic, gsm8k."""

    tasks = TaskSet(kind=MADE, near_duplicate=None)
    # A story with other numbers is another problem, though nearly all its words are the same.

    class Config(Environment.Config):
        gsm8k: str = ""
        """A file of GSM8K (lines of question and answer), held out beside the made problems."""

    config: Config

    def problems(self) -> Read:
        assert self.tasks is not None
        if self.tasks.kind != MADE:
            return self._read()
        drawn: Drawn = chain(map(Given, self.made(self.tasks)), self._gsm8k(self.tasks))
        unlimited = self.tasks.model_copy(update={"limit": None})  # the limit is of the made ones
        return settle(drawn, self, unlimited, Options())

    def _read(self) -> Read:
        """The set that the configuration names; one of GSM8K is never trained on."""
        assert self.tasks is not None
        if self.tasks.kind == "gsm8k" or _is_gsm8k(self._path(self.tasks.path)):
            self.tasks = self.tasks.model_copy(update={"heldout_share": 1.0})
        return super().problems()

    def made(self, tasks: TaskSet) -> Iterator[Problem]:
        for one in made(tasks.limit or COUNT, tasks.seed):
            yield Problem(
                environment=self.name,
                messages=(say("user", one.question),),
                answer=str(one.answer),
                slice=one.kind,
                truth_from="ground_truth",
                attributes={"solution": "\n".join(one.steps)},
            )

    def _gsm8k(self, tasks: TaskSet) -> Drawn:
        if not self.config.gsm8k:
            return
        for one in gsm8k.READER.read(Source(self, tasks, self._path(self.config.gsm8k), Options())):
            if isinstance(one, Given):
                problem = msgspec.structs.replace(one.problem, slice="gsm8k")
                yield Given(problem, "heldout")
            else:
                yield one

    def _path(self, path: str) -> Path:
        return (self.folder or Path()) / Path(path).expanduser()

    def posed(self, problem: Problem) -> Problem:
        """With how the answer is to be written."""
        return msgspec.structs.replace(problem, messages=(say("system", HOW), *problem.messages))

    @reward()
    def correct(self, answer: str, choice: Choice, problem: Problem) -> bool:
        """The number that a finished answer ends in is the right one, exactly."""
        found = final_number(answer) if choice.finish_reason == "stop" else None
        return found is not None and found == _true(problem)

    @metric
    def in_form(self, answer: str) -> bool:
        """The last line is `#### ` and one number."""
        return marked(answer)

    @metric
    def has_number(self, answer: str) -> bool:
        return final_number(answer) is not None

    def gold(self, problem: Problem) -> str | list[Message] | None:
        if problem.answer is None:
            return None
        steps = problem.attributes.get("solution")
        return f"{steps}\n#### {problem.answer}" if steps else f"#### {problem.answer}"

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """One more, the other sign, two numbers at once, and the right one said before another."""
        right = _true(problem)
        flipped = [f"#### {-right}"] if right else []
        return (
            f"#### {right + 1}",
            *flipped,
            f"#### {right} or {right + 1}",
            f"The answer is {right}.\n#### {right + 2}",
            "I cannot say.",
        )


def _true(problem: Problem) -> Fraction:
    """
    Raises:
        Ungraded: the problem's answer is no number.
    """
    numbers = numbers_in(str(problem.answer))
    if len(numbers) != 1:
        raise Ungraded(f"the problem's answer {str(problem.answer)[:80]!r} is no one number")
    return numbers[0]


def _is_gsm8k(path: Path) -> bool:
    from environments.tasksets.rows import sample

    return path.exists() and gsm8k.recognises(path, sample(path))
