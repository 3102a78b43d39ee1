"""Rollouts as an engine would have sampled them: small traces of any number of calls, graded."""

from collections.abc import Sequence
from typing import Any

from environments.attempt import Finished
from flywheel.records import (
    Choice,
    Grade,
    Message,
    ModelCall,
    Problem,
    Sampling,
    Span,
    Tokens,
    Trace,
    say,
)
from trainer.algorithms.contract import Group
from trainer.algorithms.groups import group_of
from trainer.render import Rendering

Turn = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt ids and the ids that were sampled."""
PROBLEM = Problem(environment="e", messages=(say("user", "2 1"),), answer="1 2")
WHOLE = Sampling(temperature=1.0, top_p=1.0)


def played(
    name: str,
    turns: Sequence[Turn],
    rendering: Rendering,
    *,
    sampling: Sampling = WHOLE,
    attributes: dict[str, Any] | None = None,
    inputs: Sequence[tuple[Message, ...]] = (),
    **tokens: Any,
) -> Finished:
    """An episode of one call a turn; each token's logprob is -0.01 times its id."""
    spans = []
    for number, (prompt, said) in enumerate(turns):
        known = {
            "logprobs": tuple(-0.01 * token for token in said),
            "policy_versions": ("p-v1",),
            "template_digest": rendering.template_digest,
            "tokenizer_digest": rendering.tokenizer_digest,
        }
        choice = Choice(
            message=say("assistant", rendering.decode(said)),
            finish_reason="stop",
            tokens=Tokens(prompt_ids=prompt, completion_ids=said, **{**known, **tokens}),
        )
        call = ModelCall(
            input=inputs[number] if inputs else (), choices=(choice,), sampling=sampling
        )
        spans.append(Span(id=f"call-{number}", kind="model", start=number, call=call))
    trace = Trace(
        id=name, project="p", source="s", external_id=name, origin="rollout", spans=tuple(spans),
        problem_id=PROBLEM.id, attributes=attributes or {},
    )  # fmt: skip
    return Finished(trace, [])


def rewarded(
    name: str, value: float | None, steps: dict[str, float | None] | None = None
) -> list[Grade]:
    """An outcome reward of weight 1, and process rewards of weight 1 by span."""
    why = "not tried"
    grades = [Grade(trace_id=name, reward="right", value=value, reason=None if value else why)]
    grades += [
        Grade(trace_id=name, reward="step", value=one, span_id=span, reason=None if one else why)
        for span, one in (steps or {}).items()
    ]
    return grades


def group(finished: Sequence[Finished], grades: Sequence[list[Grade]], id: str = "g") -> Group:
    return group_of(id, PROBLEM, "e", finished, grades)
