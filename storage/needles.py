"""What is looked for to show that nothing of an erased trace is left: ids, pieces of text, tokens.

Enter what was said and the ids it went by; leave the bytes that each may lie as (plain, escaped as
JSON, in JSON inside JSON, as HTML, token ids as JSON, MessagePack or integers) and whether some
bytes hold one. Invariant: an id counts only where no letter of a longer one stands beside it, so
that the data of `alice-2` is never taken for that of `alice`.
"""

import html
import json
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from flywheel.records import Record

if TYPE_CHECKING:
    import polars as pl

SHORTEST_TEXT, SHORTEST_ID, SHORTEST_TOKENS = 12, 3, 16
"""What is shorter stands for nobody: it is removed where it is known to lie, and not looked for."""
LONGEST = 64
"""Characters of a piece; a cut or quoted copy of the text still holds one of its pieces."""
_PLAIN = re.compile(r"[A-Za-z0-9 .,;:!?()@/_#%*=+-]{20,}")
"""Text that lies the same however it was written: not escaped by JSON, nor by HTML."""
_BESIDE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@:+-")
_ALONE = 32
"""Characters from which on an id is unlike any other, whatever stands beside it."""


class Needles(Record, frozen=True, kw_only=True):
    ids: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """Pieces, as `pieces` cuts them."""
    tokens: tuple[tuple[int, ...], ...] = ()


def pieces(text: str) -> Iterator[str]:
    """Up to three pieces of `text` by which it is known: from its beginning, middle and end."""
    runs = [run.strip() for run in _PLAIN.findall(text)]
    runs = [run for run in runs if len(run) >= SHORTEST_TEXT]
    if not runs:
        cut = text.strip()[:LONGEST]
        if len(cut) >= SHORTEST_TEXT:
            yield cut
        return
    longest = max(runs, key=len)
    middle = max(0, (len(longest) - LONGEST) // 2)
    yield runs[0][:LONGEST]
    yield longest[middle : middle + LONGEST]
    yield runs[-1][-LONGEST:]


def token_piece(ids: Sequence[int]) -> tuple[int, ...] | None:
    """The middle of a sequence, where it is long enough to be nobody else's."""
    if len(ids) < SHORTEST_TOKENS:
        return None
    start = (len(ids) - SHORTEST_TOKENS) // 2
    return tuple(ids[start : start + SHORTEST_TOKENS])


class Search:
    """`Needles`, ready to be looked for in any number of bytes."""

    def __init__(self, needles: Needles) -> None:
        self.ids = frozenset(one for one in needles.ids if len(one) >= SHORTEST_ID)
        self.needles = needles
        self._kinds: dict[str, tuple[str, str | None]] = {}
        """Bytes (as Latin-1) -> what they are, and the id that must stand alone."""
        self._of: dict[str, str | tuple[int, ...]] = {}
        """The same bytes -> the needle that they are a form of."""
        for one in self.ids:
            alone = None if len(one) >= _ALONE else one
            for form in _forms(one):
                self._kinds[_bytes(form)] = ("id", alone and form)
                self._of[_bytes(form)] = one
        for one in needles.texts:
            for form in _forms(one):
                self._kinds[_bytes(form)] = ("text", None)
                self._of[_bytes(form)] = one
        for tokens in needles.tokens:
            for data in _token_forms(tokens):
                self._kinds[data.decode("latin-1")] = ("tokens", None)
                self._of[data.decode("latin-1")] = tokens

    @property
    def empty(self) -> bool:
        return not self._kinds

    @cached_property
    def overlap(self) -> int:
        """Bytes of a window that the next one begins with, so that nothing is cut in two."""
        return max(map(len, self._kinds), default=0) + 1

    @cached_property
    def _patterns(self) -> list[str]:
        return list(self._kinds)

    @cached_property
    def _unmistakable(self) -> list[str]:
        """For bytes whose neighbours mean nothing: pages of a database."""
        return [form for form, (_, alone) in self._kinds.items() if alone is None]

    def hits(self, windows: Sequence[bytes], *, pages: bool = False) -> list[tuple[int, str]]:
        """Which of `windows` hold something, and of what kind.

        Args:
            pages: they are pages of a file whose cells stand side by side.
        """
        import polars as pl

        patterns = self._unmistakable if pages else self._patterns
        if not patterns:
            return []
        series = pl.Series([window.decode("latin-1") for window in windows], dtype=pl.String)
        return [
            (at, kind)
            for at, text, forms in _some(series, patterns)
            if (kind := self._kind(text, forms)) is not None
        ]

    def matched(self, windows: Sequence[bytes]) -> set[str | tuple[int, ...]]:
        """Which needles some of `windows` hold, themselves."""
        import polars as pl

        if self.empty or not windows:
            return set()
        series = pl.Series([window.decode("latin-1") for window in windows], dtype=pl.String)
        return {
            self._of[form]
            for _, text, forms in _some(series, self._patterns)
            for form in forms
            if self._kind(text, (form,)) is not None
        }

    def holds(self, data: bytes) -> bool:
        return bool(self.hits([data]))

    def places(self, data: bytes) -> list[tuple[int, int]]:
        """Where in `data` they stand: (offset, length), in order; they may overlap."""
        import polars as pl

        text = data.decode("latin-1")
        found = []
        for form in set(pl.Series([text]).str.extract_many(self._patterns, overlapping=True)[0]):
            alone = self._kinds[form][1] is not None
            found += [(at, len(form)) for at in _standing(text, form, alone=alone)]
        return sorted(found)

    def _kind(self, text: str, matched: Iterable[str]) -> str | None:
        for form in matched:
            kind, alone = self._kinds[form]
            if alone is None or next(_standing(text, form, alone=True), None) is not None:
                return kind
        return None


def _some(series: "pl.Series", patterns: list[str]) -> Iterator[tuple[int, str, Collection[str]]]:
    """Number and text of those that hold some of `patterns`, and which; one automaton for all."""
    mask = series.str.contains_any(patterns)
    texts = series.filter(mask)
    if len(texts):
        found = texts.str.extract_many(patterns, overlapping=True).list.unique()
        yield from zip(mask.arg_true().to_list(), texts.to_list(), found.to_list(), strict=True)


def _standing(text: str, form: str, *, alone: bool) -> Iterator[int]:
    """Where `form` stands in `text`; `alone`: only where nothing of a longer id is beside it."""
    at = text.find(form)
    while at >= 0:
        end = at + len(form)
        beside = text[at - 1 : at] + text[end : end + 1] if alone else ""
        if not _BESIDE.intersection(beside):
            yield at
        at = text.find(form, at + 1)


def _bytes(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _forms(text: str) -> set[str]:
    """How `text` may be written inside a file of ours, or of a program of ours."""
    once, twice = [text], [text]
    for ascii_only in (False, True):
        inner = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        once.append(inner)
        twice += [json.dumps(inner, ensure_ascii=one)[1:-1] for one in (False, True)]
    return {*once, *twice, html.escape(text), html.escape(text, quote=False)}


def _token_forms(tokens: tuple[int, ...]) -> Iterator[bytes]:
    yield ",".join(map(str, tokens)).encode()
    yield ", ".join(map(str, tokens)).encode()
    yield b"".join(map(msgspec.msgpack.encode, tokens))
    yield struct.pack(f"<{len(tokens)}q", *tokens)
    if all(0 <= one < 1 << 31 for one in tokens):
        yield struct.pack(f"<{len(tokens)}i", *tokens)
