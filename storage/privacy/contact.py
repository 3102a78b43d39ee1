"""How a person is reached: addresses of mail, numbers of phones, addresses of machines.

A text enters; places leave. Each pattern starts with a set of characters or is tried only where a
literal stands, so that a text without any costs a scan and no more.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address

from storage.privacy.place import Glance, Place, around, cued, cues_in

_AT = r"(?:@|%40|\s?[\[(](?:at|AT)[\])]\s?)"
_DOT = r"(?:\.|\s?[\[(](?:dot|DOT)[\])]\s?)"
_EMAIL = re.compile(
    rf"[\w.+'-]{{1,64}}{_AT}(?:[^\W_](?:[\w-]{{0,61}}[^\W_])?{_DOT})+[^\W\d_]{{2,24}}\b"
)
_EMAIL_SPOKEN = re.compile(
    r"[\w.+-]{1,64} at [a-z0-9-]{2,63} dot (?:com|net|org|edu|gov|io|de|fr|uk|eu|es|it|nl|ch)\b",
    re.I,
)
_MARKS, _LOCAL, _SIGNS = ("@", "%40", "(at)", "[at]"), 64, "_.+'-"
"""Of the part before the mark: its characters at most (RFC 5321, 4.5.3.1.1), and its signs."""
_LEAD = ".'-+"

_NUMBER = re.compile(r"[+(]?\d[\d \u00a0().\-/]{5,22}\d")
_NORTH_AMERICAN = re.compile(r"(?:\+?1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[ .-]\d{4}")
_SAID = re.compile(
    r"(?:phone|mobile|cell|\btel(?:efon|éfono)?|\bfax|whatsapp|handy|rufnummer|portable|móvil)"
    r"(?:[_ ]?(?:number|no|nr))?\b[^\d\n]{0,24}$",
    re.I,
)
_ASKED = re.compile(r"\b(?:call|reach|text|dial|contact)\b[^\d\n]{0,16}$", re.I)
"""Says so of a number that is written as numbers of phones are: any other may be an order's."""
_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "CH", "AT", "IN", "AU", "BR", "MX", "JP")
"""Whose numbers are understood without a country's code, where the text says that it is one."""

_V4 = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}")
_V6 = re.compile(r"[0-9A-Fa-f:]{3,45}(?:\d{1,3}(?:\.\d{1,3}){3})?")
_INSIDE = re.compile(r"10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|255\.|f[cd][0-9a-f]{2}:", re.I)
"""Nets of one house, and masks."""
_VERSION = re.compile(r"(?:\bv|version|release|chapter|section|§)\W{0,2}$", re.I)


def emails(text: str, look: Glance) -> Iterator[Place]:
    for mark in cues_in(look.low, _MARKS):
        for at in cued(look.low, mark):
            start = at - (text[at - 1 : at] == " ")
            least = max(0, start - _LOCAL)
            while start > least and (text[start - 1].isalnum() or text[start - 1] in _SIGNS):
                start -= 1
            if match := _EMAIL.match(text, start):
                said = match.group()
                yield Place(start + len(said) - len(said.lstrip(_LEAD)), match.end(), "email")
    if " at " in look.low and " dot " in look.low:
        for match in _EMAIL_SPOKEN.finditer(text):
            yield Place(*match.span(), "email")


def phones(text: str, look: Glance) -> Iterator[Place]:
    for part in around(look, 2):
        for match in _NUMBER.finditer(text, *part):
            yield from _phone(text, match)


def _phone(text: str, match: re.Match[str]) -> Iterator[Place]:
    start, end = match.span()
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    if before.isalnum() or before in tuple("_.-/#$€£") or after.isalnum() or after in ("_", "%"):
        return
    said = match.group()
    if not 7 <= sum(map(str.isdigit, said)) <= 15:
        return
    before, parted = text[max(0, start - 48) : start], not said.isdigit()
    told = bool(_SAID.search(before) or (parted and _ASKED.search(before)))
    if _valid(said, _regions_of(said, told), told):
        yield Place(start, end, "phone")


def _regions_of(said: str, told: bool) -> tuple[str | None, ...]:
    """Where a number of that form may be from; () = it is none, as it stands."""
    if said[0] == "+" or (said[:2] == "00" and said[2].isdigit()):
        return (None,)
    if told:
        return _REGIONS
    return ("US",) if _NORTH_AMERICAN.fullmatch(said) else ()


def _valid(said: str, regions: tuple[str | None, ...], told: bool) -> bool:
    """Whether somebody can have that number; where the text says that it is one, and of which
    country, its length is enough."""
    import phonenumbers

    number = "+" + said[2:] if said.startswith("00") else said
    for region in regions:
        try:
            parsed = phonenumbers.parse(number, region)
        except phonenumbers.NumberParseException:
            continue
        possible = told and region is None and phonenumbers.is_possible_number(parsed)
        if possible or phonenumbers.is_valid_number(parsed):
            return True
    return False


def machines(text: str, look: Glance) -> Iterator[Place]:
    for start, end in look.runs:
        if text.count(".", start, end) >= 3:
            for match in _V4.finditer(text, start, end):
                before = text[max(0, match.start() - 12) : match.start()]
                if _alone(text, *match.span()) and not _VERSION.search(before):
                    yield from _machine(match)
    if "::" in text or text.count(":") >= 7:
        for match in _V6.finditer(text):
            said = match.group()
            grouped = said.count(":") >= 3 and any(map(str.isdigit, said))
            if grouped and _alone(text, *match.span()):
                yield from _machine(match)


def _alone(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start] if start else "", text[end : end + 2]
    if before.isalnum() or before in ("_", ".", "-"):
        return False
    return not (
        after[:1].isalnum() or after[:1] == "_" or (after[:1] == "." and after[1:].isdigit())
    )


def _machine(match: re.Match[str]) -> Iterator[Place]:
    """A machine's own name for itself, and masks, say nothing of anybody."""
    try:
        address = ip_address(match.group())
    except ValueError:
        return
    inside = address.is_loopback or address.is_unspecified or address.is_link_local
    if not inside and not _INSIDE.match(match.group()):
        yield Place(*match.span(), "ip")
