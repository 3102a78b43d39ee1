"""What never touches the disk: a project's rules, applied to all that is recorded of a request.

Enters any JSON value; leaves the same object where nothing matched, else a copy with each match
replaced. Texts are searched one by one, and once more as JSON where they are JSON with escapes (a
tool call's arguments). Images and files that come as base64 are bytes to it and stay as they are.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from flywheel.records import Feedback
from flywheel.serving_section import RedactionRule

_ESCAPED = ('{"', "[", '"', "{ ", "{\n")


class Redaction:
    def __init__(self, rules: Sequence[tuple[str, str]], secret: bytes) -> None:
        """
        Args:
            rules: patterns, and what takes the place of their matches.
            secret: makes names from names that matched; the same name gives the same.
        """
        self._rules = [(re.compile(pattern), _instead(text)) for pattern, text in rules]
        self._secret = secret

    def text(self, text: str) -> str:
        if text.startswith("data:") and ";base64," in text[:200]:
            return text
        clean = text
        for pattern, instead in self._rules:
            clean = pattern.sub(instead, clean)
        if "\\" in clean and clean.lstrip().startswith(_ESCAPED):
            clean = self._escaped(clean)
        return text if clean == text else clean

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            items = [(self.value(key), self.value(one)) for key, one in value.items()]
            same = all(
                a is c and b is d for (a, b), (c, d) in zip(items, value.items(), strict=True)
            )
            return value if same else dict(items)
        if isinstance(value, list | tuple):
            ones = [self.value(one) for one in value]
            same = all(a is b for a, b in zip(ones, value, strict=True))
            return value if same else type(value)(ones)
        if isinstance(value, int | float) and not isinstance(value, bool):
            said = str(value)
            clean = self.text(said)
            return value if clean == said else clean
        return value

    def name(self, name: str) -> str:
        """Of an id that somebody gave: another in its place, so that what has one id still has."""
        if self.text(name) == name:
            return name
        return "redacted-" + blake2b(name.encode(), key=self._secret, digest_size=12).hexdigest()

    def body(self, data: bytes) -> bytes:
        """JSON as it came. What is none is text."""
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.text(data.decode("utf-8", "replace")).encode()
        clean = self.value(value)
        return data if clean is value else msgspec.json.encode(clean)

    def feedback(self, said: Feedback) -> Feedback:
        return msgspec.structs.replace(
            said,
            target=self.name(said.target),
            name=self.name(said.name),
            value=self.value(said.value),
            by=None if said.by is None else self.name(said.by),
            attributes=self.value(said.attributes),
        )

    def _escaped(self, text: str) -> str:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        clean = self.value(value)
        return text if clean is value else msgspec.json.encode(clean).decode()


@lru_cache(maxsize=256)
def _redaction(rules: tuple[tuple[str, str], ...], secret: bytes) -> Redaction:
    return Redaction(rules, secret)


def redaction_of(rules: Sequence[RedactionRule], secret: bytes) -> Redaction | None:
    """None = the project has no rules."""
    if not rules:
        return None
    return _redaction(tuple([(rule.pattern, rule.replace) for rule in rules]), secret)


def _instead(text: str) -> Callable[[re.Match[str]], str]:
    """As it is written: no group is put in. A match of nothing stays nothing."""
    return lambda match: text if match.group() else ""
