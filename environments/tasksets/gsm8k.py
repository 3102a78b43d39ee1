"""GSM8K: a question, and a worked answer whose last line is `#### ` and the number."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environments.tasksets.contract import Given, Options, Reader, Source
from environments.tasksets.fields import problem, require
from environments.tasksets.messages import prompt_of
from environments.tasksets.rows import Row, shaped
from flywheel.errors import BadRecord

MARK = "####"


def fit(row: Row, source: Source) -> Given:
    question = require(row.value, "question", str, "the question's text")
    worked = require(row.value, "answer", str, f"the solution, with `{MARK} number` at its end")
    solution, mark, number = worked.rpartition(MARK)
    number = number.strip().replace(",", "")
    if not mark or not number:
        raise BadRecord(f"has no `{MARK} number` at its end", field="answer")
    named = {"id": row.value["id"]} if "id" in row.value else {}
    return Given(
        problem(
            source,
            prompt_of(question, "question", source.options.system),
            number,
            attributes={"solution": solution.strip(), **named},
        ),
        row.side,
    )


def recognises(_: Path, row: Mapping[str, Any] | None) -> bool:
    answer = row.get("answer") if row else None
    return isinstance(answer, str) and "question" in (row or {}) and f"\n{MARK} " in answer


READER = Reader(Options, recognises, shaped(fit))
