"""Shaping: a right answer that took more than its group's right answers earns less.

Enter: a group, and how much length and calls matter. Leaves: the same group with other rewards; a
wrong answer's stay. With α the penalty and x what the answer took,

    reward · (1 − α σ((x − mean) / std))

over the group's right answers, where x counts sampled tokens, or model calls. Relative to the group
because hard problems take more. Arora and Zanette 2025, "Training Language Models to Reason
Efficiently", arXiv 2502.04463, section 4. A right answer is one that earned more than 0.
"""

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from flywheel.train_section import RLSection
from trainer.algorithms.contract import Group, Rollout


def shaped(group: Group, rl: RLSection) -> Group:
    penalties = [(rl.length_penalty, tokens_of), (rl.call_penalty, calls_of)]
    right = [one for one in group.rollouts if one.reward is not None and one.reward > 0]
    if not right or not any(penalty for penalty, _ in penalties):
        return group
    kept = dict.fromkeys((one.trace.id for one in right), 1.0)
    for penalty, effort in penalties:
        for rollout, share in zip(right, _shares(right, effort), strict=True):
            kept[rollout.trace.id] -= penalty * share
    rollouts = tuple(_scaled(one, kept.get(one.trace.id)) for one in group.rollouts)
    return msgspec.structs.replace(group, rollouts=rollouts)


def tokens_of(rollout: Rollout) -> int:
    """Sampled, in all its calls."""
    return sum(sum(path.mask) for path in rollout.paths)


def calls_of(rollout: Rollout) -> int:
    return len({segment.span_id for path in rollout.paths for segment in path.segments})


def _shares(right: Sequence[Rollout], effort: Callable[[Rollout], int]) -> list[float]:
    """Of the whole penalty, 0 to 1: a half for what is as long as the mean."""
    taken = [effort(one) for one in right]
    middle, spread = statistics.fmean(taken), statistics.pstdev(taken)
    return [1 / (1 + math.exp(-(one - middle) / spread)) if spread else 0.5 for one in taken]


def _scaled(rollout: Rollout, factor: float | None) -> Rollout:
    if factor is None or rollout.reward is None:
        return rollout
    values = {
        span: None if value is None else value * factor for span, value in rollout.values.items()
    }
    return msgspec.structs.replace(rollout, reward=rollout.reward * factor, values=values)
