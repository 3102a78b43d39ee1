"""What a desk is made of: actions on a database, what its policy forbids, what can be asserted.

Enter: a database (a JSON object) and an action's arguments. Leave: what the action says, and the
database changed in place. Invariant: an action is deterministic and depends on nothing else, so the
same calls on the same start give the same end, whoever replays them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Database = dict[str, Any]


class NotDone(Exception):
    """What an action says when it cannot be done; the database is as it was."""


class Action(NamedTuple):
    description: str
    properties: Mapping[str, Any]
    """JSON schemas of its arguments."""
    run: Callable[..., Any]
    """`run(database, **arguments)`; raises NotDone."""
    writes: bool = False
    optional: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": [name for name in self.properties if name not in self.optional],
            "additionalProperties": False,
        }


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


Forbidden = Callable[[Database, Call, list[Call]], str | None]
"""Why the policy forbids this write to this database after these calls; None = it does not."""


class Domain(NamedTuple):
    actions: Mapping[str, Action]
    forbidden: Forbidden
    assertions: Mapping[str, Callable[..., bool]] = {}
    """Of the final database, by name: `assertion(database, **arguments)`."""


TEXT = {"type": "string"}


def one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}
