"""Keeps keys out of what is told and kept.

Enter what a server said, and the key that it was shown. Leaves the same without the key: servers
repeat it in their errors, and errors end in logs, records and pages.
"""

MASK = b"[key]"
_SHORTEST = 8
"""Characters of a key that is looked for: shorter ones are dummies, and stand in common words."""


def masked(data: bytes, key: str | None) -> bytes:
    if not key or len(key) < _SHORTEST:
        return data
    return data.replace(key.encode(), MASK)


def why_no_key(key: str) -> str | None:
    """Why `key` cannot be sent in a header; None = it can. The reason does not hold it."""
    if key.isascii() and key.isprintable():
        return None
    return "it has characters that no key has: a line break, or letters beyond ASCII"
