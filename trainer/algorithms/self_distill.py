"""Self-distillation: the teacher is the model itself, which reads a hint before the problem.

The student samples without the hint; the same model with it says of each token how likely it would
have been, and so what the hint brings is learnt. {answer}, {text} and any of the problem's own
attributes stand in the hint by their names. (Hübotter et al. 2026, "Reinforcement Learning via
Self-Distillation"; Zhao et al. 2026, "Self-Distilled Reasoner".)
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from flywheel.errors import BadRecord, UsageError
from flywheel.records import Problem, say
from trainer.algorithms.contract import Context, Group, Prepared
from trainer.algorithms.policy import joined
from trainer.algorithms.teaching import taught

_NAMED = re.compile(r"\{(\w+)\}")


def self_distill(groups: Sequence[Group], context: Context) -> Prepared:
    """
    Raises:
        UsageError: there is no hint, or no teacher.
    """
    template = context.settings.teacher.hint if context.settings.teacher else ""
    if not template:
        raise UsageError("self_distill needs a hint: set train.teacher.hint")
    return joined([_prepared(group, context, template) for group in groups])


def _prepared(group: Group, context: Context, template: str) -> Prepared:
    try:
        hint = filled(template, group.problem)
    except BadRecord as error:
        return Prepared((), ((group.id, error.reason),))
    return taught(group, context, [say("system", hint)])


def filled(template: str, problem: Problem) -> str:
    """
    Raises:
        BadRecord: the problem lacks what the hint names.
    """
    known = {**problem.attributes, "text": problem.text, "answer": problem.answer}

    def word(match: re.Match[str]) -> str:
        value: Any = known.get(match[1])
        if value is None:
            raise BadRecord(f"the hint names {match[0]}, and problem {problem.id} has none")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _NAMED.sub(word, template)
