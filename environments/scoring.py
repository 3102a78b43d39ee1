"""`python -m environments.scoring SPEC.json`: grades answers for a program that cannot import ours.

Requests come on standard input as JSON lines, answers go to standard output in the same order:

{"problem": "<id>", "answer": "text"} -> {"score": 0.5, "reason": null}

The score is the weighted mean of the environment's rewards; null = it could not be given, and
`reason` says why. The environment grades as it grades everywhere: what it runs, it isolates.
"""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from environments.define import Environment
from environments.golden import trace_of
from environments.grading import Item, grade_all, score
from environments.load import load_environment
from flywheel.records import Problem


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the child is told: which environment, and the problems that answers will name."""

    path: str
    """As [environment] has it."""
    folder: str
    """The project's."""
    config: dict[str, Any] = {}
    problems: tuple[Problem, ...] = ()


class Asked(msgspec.Struct, frozen=True):
    problem: str
    answer: str


class Scored(msgspec.Struct, frozen=True):
    score: float | None
    reason: str | None = None
    """Why the score is None."""


def score_of(environment: Environment, problem: Problem, answer: str) -> Scored:
    """One answer's score, as a rollout that ended in it would have."""
    (grades,) = grade_all(environment, [Item(trace_of(problem, answer), problem)])
    value = score(grades)
    if value is not None:
        return Scored(value)
    missing = (f"{one.reward}: {one.reason}" for one in grades if one.weight and one.value is None)
    return Scored(None, "; ".join(missing) or "the environment has no reward with a weight")


def serve(spec: Spec) -> None:
    """Answers until the input ends. A request that cannot be read is answered with its reason."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    environment = load_environment(spec.path, Path(spec.folder), spec.config)
    problems = {one.id: one for one in spec.problems}
    for line in sys.stdin.buffer:
        try:
            asked = msgspec.json.decode(line, type=Asked)
            problem = problems[asked.problem]
        except (msgspec.DecodeError, KeyError) as error:
            said = Scored(None, f"not a request about a problem of this job: {error}")
        else:
            said = score_of(environment, problem, asked.answer)
        answers.write(msgspec.json.encode(said) + b"\n")


if __name__ == "__main__":
    serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec))
