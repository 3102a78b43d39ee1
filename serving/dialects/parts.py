"""Parts of a message in the chat form, as the dialects that have other ones write them."""

from typing import Any

Fields = dict[str, Any]


def joined(parts: list[Fields]) -> str | list[Fields]:
    """One text is a string: every chat template knows it."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].get("type") == "text":
        return str(parts[0]["text"])
    return parts
