"""Choosing: which of a project's deployments answers a request, and how likely that choice was.

A conversation stays with whom it got: the choice is a hash of its id (or, without one, of the
user's) and the challenger's name. A request that names neither is drawn for. No state is kept.
"""

import random
from hashlib import blake2b
from typing import Any, NamedTuple

from flywheel.lineage import Deployment
from serving.routing import ProjectRoute

_WHOLE = 2**64


class Choice(NamedTuple):
    deployment: Deployment
    probability: float
    """That such a request goes to this deployment, by the routing as it stood."""


def choose(route: ProjectRoute, sticky: str | None) -> Choice:
    """
    Args:
        sticky: what the request belongs to, a conversation or else a user; None = to nothing.
    """
    challenger = route.challenger
    if challenger is None or not route.share:
        return Choice(route.champion, 1.0)
    drawn = random.random() if sticky is None else place_of(sticky, challenger.name)
    if drawn < route.share:
        return Choice(challenger, route.share)
    return Choice(route.champion, 1.0 - route.share)


def drawing(route: ProjectRoute, chosen: Deployment) -> dict[str, Any]:
    """Between whom it was drawn, and how likely each was: what estimates from logged choices need,
    whoever answers in the end. Only where there is a challenger with a share."""
    assert route.challenger is not None
    among = {route.champion.name: 1.0 - route.share, route.challenger.name: route.share}
    return {"chosen": chosen.name, "among": among}


def place_of(sticky: str, challenger: str) -> float:
    """Where it falls between 0 and 1. Another challenger deals anew, so that nobody is always the
    one tried on; a greater share of the same only adds to those it has."""
    said = f"{challenger}\0{sticky}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(said, digest_size=8).digest()) / _WHOLE
