"""Names in place of what was found: `[EMAIL_1]` is the same address in all of one conversation, and
says nothing outside of it.

Numbers go up in the order in which things are first met, so that a conversation that grows keeps
those it had. Only keyed digests of what was found are held.
"""

import re
from collections import Counter
from hashlib import blake2b
from os import urandom
from threading import Lock

from flywheel.data_section import Found

_TAKEN = re.compile(r"\[([A-Z_]{2,16})_(\d{1,6})\]")
_DIGITS_ALONE = frozenset(("phone", "card", "iban", "national_id"))


class Pseudonyms:
    def __init__(self) -> None:
        self._key = urandom(16)
        self._known: dict[tuple[Found, bytes], str] = {}
        self._last: Counter[str] = Counter()
        self._lock = Lock()

    def of(self, kind: Found, said: str) -> str:
        key = kind, self._digest(kind, said)
        with self._lock:  # a request's body is stored beside its messages, in a thread
            if key not in self._known:
                self._last[kind.upper()] += 1
                self._known[key] = f"[{kind.upper()}_{self._last[kind.upper()]}]"
            return self._known[key]

    def also(self, kind: Found, said: str, name: str) -> None:
        """Another form of what has that name already."""
        with self._lock:
            self._known.setdefault((kind, self._digest(kind, said)), name)

    def leave_out(self, text: str) -> None:
        """Names that a text has from before are not given to anything else."""
        if "_" in text and "]" in text:
            for kind, number in _TAKEN.findall(text):
                self._last[kind] = max(self._last[kind], int(number))

    def _digest(self, kind: Found, said: str) -> bytes:
        if kind in _DIGITS_ALONE:
            said = "".join(filter(str.isalnum, said))
        return blake2b(said.casefold().encode("utf-8", "replace"), key=self._key).digest()
