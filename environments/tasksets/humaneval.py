"""HumanEval: the head of a function to be written on, its tests, and a solution.

The answer is {"prompt", "entry_point", "test", "solution"}: a program of prompt, the model's lines,
`test` and `check(<entry_point>)` ends without an error where the model is right.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environments.tasksets.contract import Given, Options, Reader, Source
from environments.tasksets.fields import problem, require
from environments.tasksets.messages import prompt_of
from environments.tasksets.rows import Row, shaped

FIELDS = {
    "task_id": "such as HumanEval/0",
    "prompt": "the function's head and docstring",
    "entry_point": "the function's name",
    "test": "a program text that defines check(candidate)",
    "canonical_solution": "the function's body",
}


def fit(row: Row, source: Source) -> Given:
    found = {name: require(row.value, name, str, what) for name, what in FIELDS.items()}
    answer = {
        "prompt": found["prompt"],
        "entry_point": found["entry_point"],
        "test": found["test"],
        "solution": found["canonical_solution"],
    }
    messages = prompt_of(found["prompt"], "prompt", source.options.system)
    attributes = {"id": found["task_id"]}
    return Given(problem(source, messages, answer, attributes=attributes), row.side)


def recognises(_: Path, row: Mapping[str, Any] | None) -> bool:
    return row is not None and row.keys() >= FIELDS.keys()


READER = Reader(Options, recognises, shaped(fit))
