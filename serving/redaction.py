"""What never touches the disk: a project's rules, applied to all that is recorded of a request.

Enters any JSON value; leaves the same object where nothing matched, else a copy with each match
replaced. Texts are searched one by one, and once more as JSON where they are JSON with escapes (a
tool call's arguments). Images and files that come as base64 are bytes to it and stay as they are.
Personal data and secrets are found by `storage.privacy`, after the rules, and get names that are
the same in all of one request: what it repeats of its conversation comes in the same order.
"""

import copy
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from flywheel.records import Feedback
from flywheel.serving_section import RedactionRule
from storage.privacy.clean import Cleaning, walked
from storage.privacy.find import Policy, find
from storage.privacy.key import other_name

_ESCAPED = ('{"', "[", '"', "{ ", "{\n")


class Redaction:
    def __init__(
        self, rules: Sequence[tuple[str, str]], secret: bytes, policy: Policy | None = None
    ) -> None:
        """
        Args:
            rules: patterns, and what takes the place of their matches.
            secret: makes names from names that matched; the same name gives the same.
            policy: what personal data and secrets are looked for; None = none.
        """
        self._rules = [(re.compile(pattern), _instead(text)) for pattern, text in rules]
        self._secret, self._policy = secret, policy
        self._cleaning = None if policy is None else Cleaning(policy)

    def begun(self) -> "Redaction":
        """The same for another conversation: what it finds gets names of its own."""
        if self._policy is None:
            return self
        other = copy.copy(self)
        other._cleaning = Cleaning(self._policy)
        return other

    def text(self, text: str, key: str | None = None) -> str:
        """
        Args:
            key: what the text is the value of: "phone" says what a row of digits is.
        """
        if text.startswith("data:") and ";base64," in text[:200]:
            return text
        clean = text
        for pattern, instead in self._rules:
            clean = pattern.sub(instead, clean)
        if self._rules and "\\" in clean and clean.lstrip().startswith(_ESCAPED):
            clean = self._escaped(clean)
        if self._cleaning is not None:
            clean = self._cleaning.text(clean, key)
        return text if clean == text else clean

    def value(self, value: Any) -> Any:
        return walked(value, self.text)

    def name(self, name: str) -> str:
        """Of an id that somebody gave: another in its place, so that what has one id still has."""
        matched = any(pattern.search(name) for pattern, _ in self._rules)
        if matched or (self._policy is not None and find(name, self._policy)):
            return other_name(name, self._secret)
        return name

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
def _redaction(
    rules: tuple[tuple[str, str], ...], secret: bytes, policy: Policy | None
) -> Redaction:
    return Redaction(rules, secret, policy)


def redaction_of(rules: Sequence[RedactionRule], secret: bytes, policy: Policy | None) -> Redaction:
    """Of one request."""
    pairs = tuple([(rule.pattern, rule.replace) for rule in rules])
    return _redaction(pairs, secret, policy).begun()


def _instead(text: str) -> Callable[[re.Match[str]], str]:
    """As it is written: no group is put in. A match of nothing stays nothing."""
    return lambda match: text if match.group() else ""
