"""A reviewer's verdict on an answer, as the Feedback that it is stored as.

Its name is `review`, one stands for each person and trace, a later one supersedes. An accepted or
corrected answer is a demonstration: its `value` is the whole answer as it should have been.
"""

from typing import Literal, get_args

from flywheel.records import Feedback

NAME = "review"
Verdict = Literal["accepted", "rejected", "corrected", "withdrawn"]
"""withdrawn: the reviewer took back what was said."""
STANDING: tuple[Verdict, ...] = ("accepted", "rejected", "corrected")


def verdict_of(feedback: Feedback) -> Verdict | None:
    """None = this is no review."""
    said = feedback.attributes.get("verdict")
    return said if feedback.name == NAME and said in get_args(Verdict) else None


def states_answer(feedback: Feedback) -> bool:
    """Whether it says what the answer should have been."""
    return feedback.kind == "demonstration" and verdict_of(feedback) in ("accepted", "corrected")
