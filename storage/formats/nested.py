"""JSON inside a JSON text, which many exporters write: its value, or the text where it is none."""

from typing import Any

from flywheel.errors import BadRecord
from storage.json_in import decode


def nested(value: Any) -> Any:
    """The value of JSON text; anything else as it is."""
    if not isinstance(value, str) or value[:1] not in ("{", "[", '"'):
        return value
    try:
        return decode(value.encode("utf-8", "replace"))
    except BadRecord:
        return value


def fields_of(value: object) -> dict[str, Any]:
    """The object that `value` is, also as JSON text; an empty one where it is none."""
    value = nested(value)
    return value if isinstance(value, dict) else {}
