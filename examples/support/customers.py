"""The company of this project: who writes, what is sent, what agents file, what is right.

It is the generator of the shipped environment, so that the example and `flywheel eval support`
never differ. Another desk has its own: see `tests/sorting/customers.py`.
"""

from environments.shipped.support.customers import (
    QUEUES,
    Filed,
    Message,
    filed,
    messages,
    prompt,
    right,
)

__all__ = ["QUEUES", "Filed", "Message", "filed", "messages", "prompt", "right"]
