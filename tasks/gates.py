"""Gates' verdicts: what a gate said is a Decision in the ledger, once, and a refusal ends the turn.

A verdict is plain data, since Prefect keeps it: {"gate", "passed", "reason", …}.
"""

from collections.abc import Sequence
from typing import Any

from flywheel.errors import Refused
from flywheel.ids import new_ulid
from flywheel.lineage import Decision, Outcome
from tasks.turns import Turn, home

Verdict = dict[str, Any]


def verdict(gate: str, ok: bool, reason: str, **found: Any) -> Verdict:
    return {"gate": gate, "passed": ok, "reason": reason, **found}


def passed(said: Verdict) -> Verdict:
    """The verdict, if the gate let it through.

    Raises:
        Refused: it did not; the reason is the gate's.
    """
    if not said["passed"]:
        raise Refused(f"{said['gate']} gate: {said['reason']}")
    return said


def decision(
    turn: Turn,
    said: Verdict,
    *,
    outcome: Outcome | None = None,
    by: str = "flywheel turn",
    **more: Any,
) -> Decision:
    """The verdict as the ledger holds it."""
    from storage.moments import moment

    return Decision(
        id=new_ulid(),
        project=turn.project,
        outcome=outcome or ("passed" if said["passed"] else "refused"),
        gate=said["gate"],
        reason=said["reason"],
        by=by,
        at=moment(home()),
        run_id=None if turn.looked else turn.run_id,
        **more,
    )


def record(
    turn: Turn, said: Verdict, *, ask: str = "", beside: Sequence[Decision] = (), **more: Any
) -> None:
    """Writes the verdict into the ledger, once a turn and gate whatever is killed or run again.

    Args:
        ask: id of what a person asked for: each ask has a verdict of its own.
        beside: verdicts that it rests on, written with it and before it.
        more: as `decision` takes it.
    """
    from storage.committer import commit
    from storage.inbox import Inbox

    of = f"{turn.run_id}-{ask}" if ask else turn.run_id
    made = [*beside, decision(turn, said, **more)]
    Inbox(home()).append(made, name=f"decision-{of}-{said['gate']}")
    commit(home())
