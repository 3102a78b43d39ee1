"""A version of the registry gets copies of requests: fetched, probed, through the serving gate.

Enters a version and a share; leaves the route as it is then.
"""

from typing import Any

import msgspec

from flywheel.lineage import Deployment
from tasks.canary import written_down
from tasks.serving_gate import serving_check
from tasks.step import step
from tasks.turns import Turn, engine, home


@step(minutes=15, keep=False)
def give_copies(
    turn: Turn, challenger: dict[str, Any], smoke: list[str], share: float, by: str, reason: str
) -> dict[str, Any]:
    from serving.rerouting import set_shadow

    deployment, client = msgspec.convert(challenger, Deployment), engine()
    try:
        route = set_shadow(
            home(),
            deployment,
            share,
            engine=client,
            verify=lambda: serving_check(turn, client, deployment, smoke),
            by=by,
            reason=reason,
        )
    finally:
        written_down(turn.project)
    found: dict[str, Any] = msgspec.to_builtins(route)
    return found
