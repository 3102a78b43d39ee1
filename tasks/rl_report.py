"""What a step's batch says of its rollouts: numbers for the run's metrics.

Enter the groups of the batch, and all that ended since the last one; leave name -> number.
A number that nothing speaks of is None.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from tasks.rl_buffer import Answered, Buffered


def learnt(batch: Sequence[Buffered], since: Sequence[Buffered]) -> dict[str, float | None]:
    """
    Args:
        batch: the groups that are trained.
        since: those that ended since the step before; of them, the shares that were left out.
    """
    ended = [one for group in since or batch for one in group.rollouts]
    told = rewards(ended)
    for name in sorted({group.slice for group in since or batch}):
        told[f"reward/{name}"] = mean(
            one.reward for group in since or batch if group.slice == name for one in group.rollouts
        )
    told["truncated_share"] = share(ended, [one for one in ended if one.cut])
    told["ungraded_share"] = share(ended, [one for one in ended if one.reward is None])
    told["rollouts_lost"] = float(sum(group.lost for group in since))
    counts: Counter[str] = Counter()
    for group in since:
        counts.update(group.counts)
    return told | {name: float(count) for name, count in counts.items()}


def rewards(ended: Sequence[Answered]) -> dict[str, float | None]:
    known = [one.reward for one in ended if one.reward is not None]
    return {
        "reward": mean(known),
        "reward_std": statistics.pstdev(known) if known else None,
    }


def mean(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return statistics.fmean(known) if known else None


def share(all_: Sequence[object], some: Sequence[object]) -> float | None:
    return len(some) / len(all_) if all_ else None
