"""Rows and problems that the curation tests start from."""

from typing import Any

from flywheel.records import Problem, Tokens, say
from flywheel.rows import Signal, TrainingRow
from storage.curate import features_of
from storage.features import columns_of
from storage.narrow import narrow
from storage.rules import RULES
from storage.rules.rule import Known


def a_row(k: int, **changed: Any) -> TrainingRow:
    """The k-th good row: unlike all others, and passing every rule."""
    fields: dict[str, Any] = {
        "trace_id": f"trace-{k}",
        "span_id": "call",
        "messages": (say("system", "Answer in JSON."), say("user", f"Question {k}")),
        "completion": say("assistant", f'{{"answer": {k}}}'),
        "problem_id": f"problem-{k}",
        "conversation": f"conversation-{k}",
        "user": f"user-{k}",
        "text": f"Question {k}",
        "tokens": Tokens(
            prompt_ids=(1, 2, 3), completion_ids=(4, 5, k), logprobs=(-0.5, 0.0, -2.0)
        ),
        "finish_reason": "stop",
        "reward": 1.0,
        "confirmed_by": "feedback",
        "fidelity": "trainable",
    }
    return TrainingRow(**(fields | changed))


def a_problem(text: str, **changed: Any) -> Problem:
    fields: dict[str, Any] = {
        "environment": "support",
        "messages": (say("system", "Answer in JSON."), say("user", text)),
        "text": text,
        "split": "heldout",
    }
    return Problem(**(fields | changed))


def judged(
    name: str, rows: list[TrainingRow], known: Known | None = None, **params: Any
) -> list[str | None]:
    """What a rule says of each row; the order of `rows` stands for that of their hashes."""
    rule, known = RULES[name], known or Known(project="support")
    parameters = rule.parameters.model_validate(params)
    made = columns_of(rows, features_of([(name, rule, parameters)]), known)
    return rule.judge(narrow(rows).with_columns(made), parameters, known).to_list()


def a_signal(value: float, kind: Any = "code", **changed: Any) -> Signal:
    return Signal(reward=f"by {kind}", value=value, kind=kind, **changed)
