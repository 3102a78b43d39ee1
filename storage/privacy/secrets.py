"""What opens something: keys, tokens, passwords.

A text enters; places leave. A vendor's key is told by its form, a token by what it holds, and a
password by the word before it and by being no word itself: "the password is wrong" holds none.
"""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Callable, Iterator
from math import log2

from flywheel.data_section import Found
from storage.privacy.place import Glance, Place, cued, cues_in
from storage.privacy.vendors import KEYS

_PRIVATE = re.compile(r"-----(BEGIN|END) (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_LONGEST_KEY = 20_000
"""Characters of a private key, at most; one that was cut off goes as far."""
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}(?:\.[\w-]*)?")
_URL = re.compile(r"://([^\s/?#@:\"'<>]{0,128}:[^\s/?#@\"'<>]{1,128})@[\w.\[-]")
_BEARER = re.compile(r"(?i:bearer)[ ]+([A-Za-z0-9\-._~+/]{16,}={0,2})")
_BASIC = re.compile(r"(?i:basic)[ ]+([A-Za-z0-9+/]{8,}={0,2})")

_SHORTEST = 20
"""Characters of a vendor's key, at least."""
_PASSWORDS = ("password", "passwd", "passphrase", "passcode", "pwd", "passwort", "kennwort",
              "contraseña", "mot de passe")  # fmt: skip
_TOKENS = ("secret", "token", "credential", "authorization", "key")
_OF_KEY = ("api", "access", "auth", "private", "secret", "encryption", "account", "subscription",
           "service", "signing", "client")  # fmt: skip
"""What stands before "key" where it is one that opens something."""
_PIN = ("pin", "pin code", "pin number")
_ASSIGNED = re.compile(
    r"(?P<how>(?:[_ -]?(?:access[_ -]?)?key)?s?[\"'`]?\s{0,3}"
    r"(?:=>|:=|[:=]|(?P<told>\b(?i:is now|is set to|is|ist|es|est)\b))\s{0,3})"
    r"(?P<quote>[\"'`]?)(?P<value>[^\s\"'`,;<>(){}\[\]]{4,512})"
)
_REFERENCE = re.compile(
    r"\$|%|process\.|os\.|env\.|settings\.|config\.|self\.|https?:|\*{3}|x{4}|\.{3}|your|example$|"
    r"redacted|changeme$|placeholder|none$|null$|true$|false$|undefined$|string$|\[",
    re.I,
)
"""What stands for a secret and is none."""
_STRONG = 3.0
"""Bits a character from which a word is no language (Shannon's entropy over its own characters;
English words of this length stay below, random hexadecimal digits come to 3.4 and more)."""


def private_keys(text: str, look: Glance) -> Iterator[Place]:
    if "PRIVATE KEY" not in text:
        return
    start, end = -1, 0
    for match in _PRIVATE.finditer(text):
        within = start >= 0 and match.start() <= start + _LONGEST_KEY
        if start >= 0 and (match[1] == "END" or not within):
            end = match.end() if within else start + _LONGEST_KEY
            yield Place(start, end, "private_key")
            start = -1
        if match[1] == "BEGIN" and start < 0:
            start = max(match.start(), end)
    if start >= 0:
        yield Place(start, min(len(text), start + _LONGEST_KEY), "private_key")


def vendor_keys(text: str, look: Glance) -> Iterator[Place]:
    if look.longest < _SHORTEST:
        return
    for literal, pattern in KEYS:
        if literal in text:
            for match in pattern.finditer(text):
                if _random(match.group()[len(literal) :]):
                    yield Place(*match.span(), "api_key")


def _random(said: str) -> bool:
    """A row of the same sign is an example's."""
    return len(set(said)) >= 6


def tokens(text: str, look: Glance) -> Iterator[Place]:
    if "eyJ" in text:
        for match in _JWT.finditer(text):
            if b'"alg"' in _unpacked(match.group().split(".")[0]):
                yield Place(*match.span(), "jwt")
    if "bearer " in look.low:
        for match in _BEARER.finditer(text):
            if any(map(str.isdigit, match.group(1))) and not _REFERENCE.match(match.group(1)):
                yield Place(*match.span(1), "api_key")


def _unpacked(packed: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
    except (binascii.Error, ValueError):
        return b""


def credentials(text: str, look: Glance) -> Iterator[Place]:
    if "://" in text and "@" in text:
        for match in _URL.finditer(text):
            if not _REFERENCE.match(match.group(1).partition(":")[2]):
                yield Place(*match.span(1), "credential")
    if "basic " in look.low:
        for match in _BASIC.finditer(text):
            name, colon, word = _unpacked(match.group(1)).partition(b":")
            if colon and name and word and (name + word).isascii() and (name + word).isalnum():
                yield Place(*match.span(1), "credential")


def passwords(text: str, look: Glance) -> Iterator[Place]:
    for cues, kind, is_one in _SAID:
        for cue in cues_in(look.low, cues):
            for at in cued(look.low, cue):
                match = _ASSIGNED.match(text, at + len(cue))
                if match is None or not _opens(cue, look.low, at):
                    continue
                value = match["value"] if match["quote"] else match["value"].rstrip(".!?:")
                if not _REFERENCE.match(value) and is_one(value, match):
                    start = match.start("value")
                    yield Place(start, start + len(value), kind)


def _opens(cue: str, low: str, at: int) -> bool:
    """Whether that word is of something that opens: any pin, and any key, is not."""
    if cue == "key":
        return low[max(0, at - 14) : at].rstrip("_- ").endswith(_OF_KEY)
    return cue not in _PIN or not low[at - 1 : at].isalnum()


def _is_password(value: str, match: re.Match[str]) -> bool:
    """A word of letters alone is a password only where it stands in quotes after a sign."""
    mixed = not value.isalpha() and any(map(str.isalnum, value))
    return len(value) >= 5 and (mixed or bool(match["quote"] and not match["told"]))


def _is_token(value: str, match: re.Match[str]) -> bool:
    digits = sum(map(str.isdigit, value))
    mixed = len(value) >= 24 and not value.islower() and not value.isupper() and "_" not in value
    return len(value) >= 16 and (digits >= 2 or mixed) and entropy(value) >= _STRONG


def _is_pin(value: str, match: re.Match[str]) -> bool:
    return value.isdigit() and 4 <= len(value) <= 8


_SAID: tuple[tuple[tuple[str, ...], Found, Callable[[str, re.Match[str]], bool]], ...] = (
    (_PASSWORDS, "password", _is_password),
    (_TOKENS, "api_key", _is_token),
    (_PIN, "password", _is_pin),
)


def entropy(said: str) -> float:
    """Bits a character (Shannon 1948, over the characters of `said`)."""
    size = len(said)
    return -sum(n / size * log2(n / size) for n in Counter(said).values())
