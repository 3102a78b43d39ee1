"""A configuration laid over what a class says: what it does not name stays the class's.

Enter the class's own part (harness, runtime, tasks) and what a person wrote of it. Leaves what is
to be validated. Invariant: another kind, or a task set at another place, is another thing, and
takes nothing from the class.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

PARTS = ("harness", "runtime", "tasks")
_WHICH = ("kind", "path")
"""Fields that say which thing it is."""


def laid_over(own: BaseModel, written: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a table of the class are kept singly; a value in such a table is taken whole."""
    if any(name in written and written[name] != getattr(own, name, None) for name in _WHICH):
        return dict(written)
    found = {name: getattr(own, name) for name in own.model_fields_set | ({"kind"} & {*dict(own)})}
    for name, value in written.items():
        here = getattr(own, name, None)
        if isinstance(here, BaseModel) and isinstance(value, Mapping):
            found[name] = laid_over(here, value)
        elif isinstance(here, Mapping) and isinstance(value, Mapping):
            found[name] = {**here, **value}
        else:
            found[name] = value
    return found
