"""What algorithms of policy gradients share: a group's rollouts become Samples with advantages.

Enter: a group. Leave: one Sample a path, whose sampled tokens weigh 1 in "rl" and, if the project
holds the policy to its start, `rl.kl` in "ref_kl". Invariant: whatever is not trained is counted or
named with its reason, and a rollout without reward enters no baseline.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flywheel.errors import BadRecord
from trainer.algorithms.advantages import advantages
from trainer.algorithms.contract import Context, Group, Prepared, Rollout
from trainer.algorithms.fitness import check_path, check_weighable, needs_ratios
from trainer.algorithms.shaping import shaped
from trainer.paths import Path, sample_of
from trainer.samples import Sample

ZERO = "zero_advantage_groups"
"""Counted: all rollouts of such a group earned the same."""


class Judged(NamedTuple):
    """A rollout beside its group."""

    rollout: Rollout
    advantages: dict[str, float | None]
    """Model span -> of the tokens that it sampled. None = not to be trained on."""


class Outcome(NamedTuple):
    judged: tuple[Judged, ...]
    refused: tuple[tuple[str, str], ...] = ()
    even: bool = False
    """Whether there is nothing to tell its rollouts apart by."""


def judge(group: Group, context: Context) -> Outcome:
    """The advantages of all spans of its rollouts that have a reward, as the project shapes it."""
    group = shaped(group, context.settings.rl)
    refused = [
        (rollout.trace.id, rollout.reason or "it has no reward")
        for rollout in group.rollouts
        if rollout.reward is None
    ]
    valued = [(one, values) for one in group.rollouts if _known(values := _values(one))]
    if len(valued) < 2:
        refused.append((group.id, f"{len(valued)} of its rollouts have a reward; it takes two"))
        return Outcome((), tuple(refused))
    try:
        found = advantages([_known(values) for _, values in valued], context.settings.rl.baseline)
    except (ValueError, OverflowError) as error:
        return Outcome((), (*refused, (group.id, str(error))))
    judged = []
    for (rollout, values), own in zip(valued, found, strict=True):
        numbers = iter(own)
        given = {span: None if one is None else next(numbers) for span, one in values.items()}
        judged.append(Judged(rollout, given))
    return Outcome(tuple(judged), tuple(refused), not any(one for own in found for one in own))


def _values(rollout: Rollout) -> dict[str, float | None]:
    """Of each span that sampled tokens; without process rewards the outcome is every span's."""
    if rollout.reward is None:
        return {}
    spans = dict.fromkeys(one.span_id for path in rollout.paths for one in path.segments)
    if not rollout.values or not spans:
        return dict.fromkeys(spans or ("",), rollout.reward)
    return {span: rollout.values.get(span) for span in spans}


def _known(values: dict[str, float | None]) -> list[float]:
    return [value for value in values.values() if value is not None]


def policy_samples(group: Group, judged: Sequence[Judged], context: Context) -> Prepared:
    """One Sample a path that can be trained on."""
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    for one in judged:
        if not one.rollout.paths:
            refused.append((one.rollout.trace.id, "none of its calls has tokens to train on"))
        for path in one.rollout.paths:
            try:
                samples.append(policy_sample(group, path, one.advantages, context))
            except BadRecord as error:
                refused.append((path.trace_id, error.reason))
    return Prepared(tuple(samples), tuple(refused))


def policy_sample(
    group: Group, path: Path, given: dict[str, float | None], context: Context
) -> Sample:
    """
    Raises:
        BadRecord: it must not be trained on.
    """
    rl = context.settings.rl
    check_path(path, context.rendering, context.settings.micro_tokens)
    if needs_ratios(rl):
        check_weighable(path)
    own = [None if span is None else given.get(span) for span in path.spans]
    mask = tuple(kept and one is not None for kept, one in zip(path.mask, own, strict=True))
    weights = {"rl": tuple(1.0 if kept else 0.0 for kept in mask)}
    if rl.kl:
        weights["ref_kl"] = tuple(rl.kl if kept else 0.0 for kept in mask)
    return msgspec.structs.replace(
        sample_of(path, row_id=path.trace_id),
        mask=mask,
        weights=weights,
        advantages=tuple(one or 0.0 if kept else 0.0 for kept, one in zip(mask, own, strict=True)),
        group_id=group.id,
    )


def joined(parts: Sequence[Prepared]) -> Prepared:
    """Several as one, in their order."""
    counts: dict[str, int] = {}
    for part in parts:
        for name, count in part.counts.items():
            counts[name] = counts.get(name, 0) + count
    return Prepared(
        samples=tuple(sample for part in parts for sample in part.samples),
        refused=tuple(one for part in parts for one in part.refused),
        counts=counts,
    )
