"""On-policy distillation: the student samples, a teacher says how likely each token was to it.

No reward is needed: each token's is the teacher's logprob less the student's own, and with it the
reverse KL to the teacher falls. (Agarwal et al. 2024, arXiv 2306.13649; Lu et al. 2025, Thinking
Machines, "On-Policy Distillation".)
"""

from collections.abc import Sequence

from trainer.algorithms.contract import Context, Group, Prepared
from trainer.algorithms.policy import joined
from trainer.algorithms.teaching import taught


def distill(groups: Sequence[Group], context: Context) -> Prepared:
    return joined([taught(group, context) for group in groups])
