"""Rows that can be trained on as they were: recorded exactly, whole, and really an answer.

What was truncated, cut, refused or left empty never passes, whatever is accepted otherwise.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from flywheel.records import Refusal, Text, ToolCall, Truncated
from flywheel.rows import TrainingRow
from storage.rules.rule import Parameters, Rule, Verdicts

FINISHED = ("stop", "tool_calls", "function_call")
WRITTEN = ("import", "demonstration")
"""Origins whose rows were written down rather than sampled: they need not say how they ended."""


class Fidelity(Parameters):
    accept: tuple[Literal["trainable", "renderable"], ...] = Field(("trainable",), min_length=1)


def fidelity(rows: Sequence[TrainingRow], parameters: Fidelity) -> Verdicts:
    return [_verdict(row, parameters.accept) for row in rows]


def _verdict(row: TrainingRow, accept: tuple[str, ...]) -> str | None:
    if row.fidelity not in accept:
        return f"fidelity {row.fidelity or 'unknown'}, wanted {' or '.join(accept)}"
    if row.fidelity == "trainable" and row.tokens is None:
        return "said to be trainable, but without its tokens"
    return _broken(row) or _unfinished(row)


def _broken(row: TrainingRow) -> str | None:
    everything = (*row.messages, row.completion)
    if any(isinstance(part, Truncated) for message in everything for part in message.parts):
        return "a part of it was truncated"
    parts = row.completion.parts
    if any(isinstance(part, Refusal) for part in parts):
        return "the model refused"
    said = any(isinstance(part, Text) and part.text.strip() for part in parts)
    if not said and not any(isinstance(part, ToolCall) for part in parts):
        return "the answer is empty"
    return None


def _unfinished(row: TrainingRow) -> str | None:
    if row.finish_reason in FINISHED:
        return None
    if row.finish_reason is None:
        written = row.tokens is None and row.origin in WRITTEN
        return None if written else "the answer was cut, or nothing says that it ended"
    return f"the answer ended by {row.finish_reason!r}"


RULE = Rule(Fidelity, fidelity)
