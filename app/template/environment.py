"""What a good answer is: the text that people said was right.

Feedback of kind "demonstration" on a conversation gives the truth; change `correct` to what good
means for you, and add metrics beside it.
"""

from environments.define import Environment, metric, reward
from flywheel.records import Choice, Problem


class Exact(Environment):
    name = "{name}"

    @reward(weight=1.0)
    def correct(self, answer: str, choice: Choice, problem: Problem) -> float:
        """The answer ended by itself and says what was right, whatever its spacing and case."""
        if choice.finish_reason != "stop":
            return 0.0
        return float(plain(answer) == plain(str(problem.answer)))

    @metric
    def words(self, answer: str) -> float:
        return float(len(answer.split()))


def plain(text: str) -> str:
    return " ".join(text.lower().split())
