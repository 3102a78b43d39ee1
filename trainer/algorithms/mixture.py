"""A mixture: each environment of one run with an algorithm of its own, in the same batches.

Enter groups of any of the run's environments; leave the samples of all, in the groups' order.
"""

from collections.abc import Mapping, Sequence

from flywheel.errors import UsageError
from trainer.algorithms import ALGORITHMS
from trainer.algorithms.contract import Context, FromGroups, Group, Prepared
from trainer.algorithms.policy import joined


def mixed(groups: Sequence[Group], context: Context, algorithms: Mapping[str, str]) -> Prepared:
    """`algorithms`: environment -> the name of its algorithm; the run's own where it has none.

    Raises:
        UsageError: one of them does not sample while it trains.
    """
    run = context.settings.algorithm
    return joined([online(algorithms.get(one.environment, run))([one], context) for one in groups])


def online(name: str) -> FromGroups:
    """
    Raises:
        UsageError: there is no such algorithm, or it does not sample while it trains.
    """
    known = ALGORITHMS.get(name)
    if known is None or known.groups is None:
        names = ", ".join(sorted(one for one, made in ALGORITHMS.items() if made.online))
        raise UsageError(f"{name} does not sample while it trains; what does: {names}")
    return known.groups
