"""One conversation without what is personal or secret in it.

Texts and JSON values enter, in the order in which they were said; the same object leaves where
nothing was found, else a copy with names in place of what was. A text that is JSON stays JSON, laid
out as it was. A name that somebody gave is known from then on, by its parts too.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from flywheel.data_section import Found
from storage.privacy.find import EVERYTHING, Policy, find
from storage.privacy.place import Place
from storage.privacy.pseudonyms import Pseudonyms
from storage.privacy.words import NO_NAME, WORDS_TOO

_DEEPEST = 6
"""JSON in JSON in JSON …"""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*', re.S)
_NUMBER = re.compile(r"[+-]?\d[\d.]*")
_BARE = re.compile(r'"\s*:\s*$'), re.compile(r"\s*[,}\]\n]|\s*$")
"""What stands before and after a number in a piece of JSON that is not the whole text."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|[_.-]+")
_LONGEST_VALUE = 512


class Cleaning:
    def __init__(self, policy: Policy = EVERYTHING) -> None:
        self.policy = policy
        self.found: list[tuple[Found, str]] = []
        """What stood there, in the order in which it was met."""
        self._names = Pseudonyms()
        self._people: dict[str, str] = {}
        self._called: re.Pattern[str] | None = None

    @property
    def counts(self) -> Counter[str]:
        """How much was found, by kind."""
        return Counter(kind for kind, _ in self.found)

    def leave_out(self, texts: Iterable[str]) -> None:
        """Of what was cleaned before: the names that it has stay its own."""
        for text in texts:
            self._names.leave_out(text)

    def text(self, text: str, key: str | None = None, depth: int = 0) -> str:
        """
        Args:
            key: what the text is the value of: "phone" says what a row of digits is.
        """
        if text.startswith("data:") and ";base64," in text[:200]:
            return text
        if depth < _DEEPEST and text.lstrip()[:1] in ("{", "[", '"'):
            clean = self._json(text, depth)
            if clean is not None:
                return clean
        return self._replaced(text, self._places(text, key))

    def value(self, value: Any) -> Any:
        return walked(value, self.text)

    # --- places

    def _places(self, text: str, key: str | None) -> Sequence[Place]:
        places = find(text, self.policy)
        if key is not None and not places and len(text) <= _LONGEST_VALUE:
            before = f'"{_CAMEL.sub(" ", key)}": "'
            places = [
                Place(start - len(before), end - len(before), kind)
                for start, end, kind in find(f'{before}{text}"', self.policy)
                if start >= len(before) and end <= len(before) + len(text)
            ]
        for place in places:
            if place.kind == "name":
                self._meet(text[place.start : place.end])
        if self._called is None:
            return places
        free = [
            Place(*match.span(), "name")
            for match in self._called.finditer(text)
            if all(match.end() <= one.start or match.start() >= one.end for one in places)
        ]
        return sorted([*places, *free]) if free else places

    def _meet(self, name: str) -> None:
        parts = [part for part in re.split(r"\s+", name) if len(part) >= 3]
        alone = {one for one in parts if one.casefold() not in WORDS_TOO | NO_NAME}
        if name in self._people:
            return
        given = self._names.of("name", name)
        for one in (name, *sorted(alone)):
            self._people.setdefault(one, given)
            self._names.also("name", one, given)
        longest = sorted(self._people, key=lambda one: (-len(one), one))
        self._called = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)")

    # --- and what stands there instead

    def _replaced(self, text: str, places: Sequence[Place]) -> str:
        if not places:
            return text
        pieces, at = [], 0
        for start, end, kind in places:
            said = text[start:end]
            name = self._names.of(kind, said)
            self.found.append((kind, said))
            before = text[max(at, start - 8) : start]
            if _NUMBER.fullmatch(said) and _BARE[0].search(before) and _BARE[1].match(text, end):
                name = f'"{name}"'
            pieces += [text[at:start], name]
            at = end
        return "".join([*pieces, text[at:]])

    def _json(self, text: str, depth: int) -> str | None:
        """None = it is no JSON."""
        if "\\" not in text and self._called is None and not find(text, self.policy):
            return text
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        pieces, at, key = [], 0, None
        for match in _TOKEN.finditer(text):
            token, end = match.group(), match.end()
            is_key = token[0] == '"' and text[end : end + 64].lstrip()[:1] == ":"
            said = _said(token)
            clean = self.text(said, None if is_key else key, depth + 1)
            if clean != said:
                pieces += [text[at : match.start()], json.dumps(clean, ensure_ascii=False)]
                at = end
            if is_key:
                key = said
        return "".join([*pieces, text[at:]]) if pieces else text


def walked(value: Any, text: Callable[[str, str | None], str], key: str | None = None) -> Any:
    """A JSON value with each of its texts and numbers as `text` makes it; itself where none is
    another.

    Args:
        text: of a text, and of what it is the value of.
    """
    if isinstance(value, str):
        return text(value, key)
    if isinstance(value, dict):
        items = [
            (text(name, None), walked(one, text, name)) if isinstance(name, str)
            else (name, walked(one, text, key))
            for name, one in value.items()
        ]  # fmt: skip
        same = all(a == c and b is d for (a, b), (c, d) in zip(items, value.items(), strict=True))
        return value if same else dict(items)
    if isinstance(value, list | tuple):
        ones = [walked(one, text, key) for one in value]
        same = all(a is b for a, b in zip(ones, value, strict=True))
        return value if same else type(value)(ones)
    if isinstance(value, int | float) and not isinstance(value, bool):
        said = str(value)
        clean = text(said, key)
        return value if clean == said else clean
    return value


def _said(token: str) -> str:
    if token[0] != '"':
        return token
    said: str = json.loads(token, strict=False) if "\\" in token else token[1:-1]
    return said
