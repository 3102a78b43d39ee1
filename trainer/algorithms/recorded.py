"""Off-policy RL from what was recorded: answers that production gave, each with its reward.

Who gave them is another policy than the one that learns, so the loss weighs them by importance
ratios to the logprobs that were recorded as they were sampled; where those are not what the policy
sampled from, the row is refused. Answers to one problem are each other's group; an answer that has
none stands beside all such answers of its slice. No new answer is sampled.
"""

import math
from collections.abc import Sequence

import msgspec

from flywheel.errors import BadRecord
from flywheel.rows import TrainingRow
from trainer.algorithms.advantages import advantages
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.fitness import check_whole, needs_ratios
from trainer.algorithms.policy import ZERO, joined
from trainer.algorithms.rows import sampled
from trainer.samples import Sample

Fit = tuple[TrainingRow, Sample, float]
"""A row, what is trained of it, and its reward."""


def recorded(rows: list[TrainingRow], context: Context) -> Prepared:
    fit: list[Fit] = []
    refused: list[tuple[str, str]] = []
    for row in rows:
        try:
            fit.append(_fit(row, context))
        except BadRecord as error:
            refused.append((row.id, error.reason))
    groups = [_prepared(name, group, context) for name, group in _groups(fit).items()]
    return joined([Prepared((), tuple(refused)), *groups])


def _fit(row: TrainingRow, context: Context) -> Fit:
    if row.reward is None:
        raise BadRecord("it has no reward")
    if not math.isfinite(row.reward):
        raise BadRecord(f"its reward is {row.reward}: it would be in its whole group's baseline")
    sample = sampled(row, context.rendering, cut=True)
    if needs_ratios(context.settings.rl):
        if sample.behaviour_logprobs is None:
            raise BadRecord("the engine gave no logprobs for what it sampled")
        if row.sampling is None:
            raise BadRecord("it is not recorded how it was sampled, and a ratio needs that")
        check_whole(row.sampling)
    return row, sample, row.reward


def _groups(fit: Sequence[Fit]) -> dict[str, list[Fit]]:
    """By problem; those who are alone with theirs by slice."""
    named: dict[str | None, list[Fit]] = {}
    for one in fit:
        named.setdefault(one[0].problem_id, []).append(one)
    groups: dict[str, list[Fit]] = {}
    for problem, several in named.items():
        for one in several:
            alone = problem is None or len(several) == 1
            groups.setdefault(f"slice {one[0].slice}" if alone else str(problem), []).append(one)
    return groups


def _prepared(name: str, group: Sequence[Fit], context: Context) -> Prepared:
    rl = context.settings.rl
    if len(group) < 2:
        alone = f"{name} has no second answer to compare it with"
        return Prepared((), ((group[0][0].id, alone),))
    try:
        given = advantages([[reward] for _, _, reward in group], rl.baseline)
    except (ValueError, OverflowError) as error:
        return Prepared((), tuple((row.id, str(error)) for row, _, _ in group))
    if not any(one for (one,) in given):
        return Prepared((), (), {ZERO: 1})
    return Prepared(
        tuple(
            _weighed(row, sample, advantage, rl.kl, name)
            for (row, sample, _), (advantage,) in zip(group, given, strict=True)
        ),
        (),
    )


def _weighed(row: TrainingRow, sample: Sample, advantage: float, kl: float, name: str) -> Sample:
    weights = {"rl": tuple(row.weight if kept else 0.0 for kept in sample.mask)}
    if kl:
        weights["ref_kl"] = tuple(kl * row.weight if kept else 0.0 for kept in sample.mask)
    return msgspec.structs.replace(
        sample,
        sampling=row.sampling,
        weights=weights,
        advantages=tuple(advantage if kept else 0.0 for kept in sample.mask),
        group_id=name,
    )
