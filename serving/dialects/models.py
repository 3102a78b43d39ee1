"""The models that are served, in the words of OpenAI's clients and of Anthropic's at once: neither
minds the other's fields."""

from collections.abc import Sequence
from typing import Any


def list_of(names: Sequence[str]) -> dict[str, Any]:
    """One page, always the only one."""
    return {
        "object": "list",
        "data": [model_of(name) for name in names],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def model_of(name: str) -> dict[str, Any]:
    ours = {"id": name, "object": "model", "created": 0, "owned_by": "flywheel"}
    return {**ours, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
