"""How many rollouts an engine takes at once, by what it says of its own load.

Additive increase, multiplicative decrease: a queue, or a KV cache nearly full, means that rollouts
wait or are preempted and computed again; then more of them only make all older. Enter the slots and
a Load; leaves the new limit, between 1 and the ceiling.
"""

import math

from trainer.orchestrator.contract import Load
from trainer.orchestrator.sharing import Slots

QUEUE = 0.25
"""Requests waiting, as a share of those running, from which the engine has too many."""
CACHE_FULL = 0.95
"""Share of the KV cache from which vLLM soon preempts."""
CACHE_FREE = 0.85
"""Up to which there is room for more; between the two the limit stays."""
FEWER = 0.8
"""Times the rollouts under way, when there are too many."""
MORE = 0.05
"""Of the ceiling, when there is room and all slots are in use."""


def adapted(slots: Slots, load: Load) -> int:
    if slots.held > slots.limit:
        return slots.limit  # rollouts take long to end: the last cut has not shown yet
    cache = load.cache_use or 0.0
    if load.waiting > QUEUE * max(load.running, 1) or cache >= CACHE_FULL:
        return max(1, math.floor(FEWER * max(slots.held, 1)))
    if load.waiting == 0 and cache <= CACHE_FREE and slots.held == slots.limit:
        return min(slots.ceiling, slots.limit + max(1, math.ceil(MORE * slots.ceiling)))
    return slots.limit
