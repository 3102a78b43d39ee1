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


class Masking:
    """The same for what comes in pieces, wherever it is cut: what a piece ends with and the key may
    begin with waits for the next one."""

    def __init__(self, key: str | None) -> None:
        self._key = key.encode() if key and len(key) >= _SHORTEST else b""
        self._kept = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be told now; b"" = more must come first."""
        key = self._key
        if not key:
            return piece
        data = (self._kept + piece).replace(key, MASK)
        at = data.find(key[:1], max(len(data) - len(key) + 1, 0))
        while at >= 0 and not key.startswith(data[at:]):
            at = data.find(key[:1], at + 1)
        self._kept = b"" if at < 0 else data[at:]
        return data if at < 0 else data[:at]

    def rest(self) -> bytes:
        """What waited; to be called once, at the end."""
        kept, self._kept = self._kept, b""
        return kept


def why_no_key(key: str) -> str | None:
    """Why `key` cannot be sent in a header; None = it can. The reason does not hold it."""
    if key.isascii() and key.isprintable():
        return None
    return "it has characters that no key has: a line break, or letters beyond ASCII"
