"""Group-relative policy optimisation: an answer is as good as it is beside its group's others.

All answers of one problem are sampled by the policy that learns; each token that was sampled has
its answer's advantage (`advantages.py`), or its own step's where the environment has process
rewards. A group whose answers all earned the same teaches nothing, is dropped and counted.
(Shao et al. 2024, arXiv 2402.03300; the baseline is the project's choice.)
"""

from collections.abc import Sequence

from trainer.algorithms.contract import Context, Group, Prepared
from trainer.algorithms.policy import ZERO, joined, judge, policy_samples


def grpo(groups: Sequence[Group], context: Context) -> Prepared:
    return joined([_prepared(group, context) for group in groups])


def _prepared(group: Group, context: Context) -> Prepared:
    outcome = judge(group, context)
    if outcome.even:
        return Prepared((), outcome.refused, {ZERO: 1})
    found = policy_samples(group, outcome.judged, context)
    return Prepared(found.samples, outcome.refused + found.refused)
