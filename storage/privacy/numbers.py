"""Numbers that are one person's: cards, bank accounts, what states count their people by.

A text enters; places leave. A number counts where its check digits hold (python-stdnum); one that
has none, or too few to tell it from any other, counts where the text says what it is.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from storage.privacy.place import Glance, Place, around, cued, cues_in

_CARD = re.compile(r"\d(?:[ -]?\d){12,15}(?!\d)")
_ISSUER = re.compile(
    r"4(?:\d{12}|\d{15})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|6(?:011|4[4-9]\d|5\d\d)\d{12}"
    r"|35\d{14}|3(?:0[0-5]|[68]\d)\d{11}|(?:62|50|5[6-9]|6[37])\d{14}"
)
"""First digits and lengths of the card networks (ISO/IEC 7812). Those of 19 digits are left out:
ids of databases are as long, and one in ten passes the check."""
_IBAN = re.compile(r"[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]{2,4}){3,8}")


_IBAN_LENGTH, _BESIDE, _NEAR, _LONG = 42, 10, 64, 16
"""Characters: of an account with its blanks, of what stands beside a number's digits, from what
says a number to it, and of the shortest number with letters that nothing says."""


class Form(NamedTuple):
    module: str
    """Of stdnum, whose `is_valid` says whether it is one; "" = its form says enough."""
    pattern: re.Pattern[str]
    cues: tuple[str, ...] = ()
    """One of which must stand shortly before it, in the same line; () = it is told by its check."""
    said: re.Pattern[str] | None = None
    """Finds one of `cues` at the end of what stands before."""


def _form(module: str, pattern: str, *cues: str) -> Form:
    words = "|".join(map(re.escape, cues))
    said = re.compile(rf"(?<![a-z])(?:{words})(?![a-z])[^\n]{{0,30}}$") if cues else None
    return Form(module, re.compile(pattern), cues, said)


FORMS = (
    _form("us.ssn", r"\d{3}-\d{2}-\d{4}"),
    _form("us.ssn", r"\d{3} ?\d{2} ?\d{4}", "ssn", "social security"),
    _form("us.itin", r"9\d{2}-\d{2}-\d{4}"),
    _form("", r"[A-CEGHJ-PR-TW-Z]{2} \d{2} \d{2} \d{2} [A-D]"),
    _form("", r"[A-CEGHJ-PR-TW-Z]{2}\d{6}[A-D]", "national insurance", "nino", "ni number"),
    _form("gb.nhs", r"\d{3}[ -]?\d{3}[ -]?\d{4}", "nhs"),
    _form("fr.nir", r"[12] ?\d{2} ?\d{2} ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}"),
    _form("de.idnr", r"\d{2} ?\d{3} ?\d{3} ?\d{3}",
          "steuernummer", "steuer-id", "idnr", "tax id", "identifikationsnummer"),
    _form("es.dni", r"\d{8}-?[A-Z]"),
    _form("es.nie", r"[XYZ]-?\d{7}-?[A-Z]"),
    _form("nl.bsn", r"\d{9}", "bsn", "burgerservicenummer"),
    _form("br.cpf", r"\d{3}\.\d{3}\.\d{3}-\d{2}"),
    _form("in_.aadhaar", r"[2-9]\d{3} \d{4} \d{4}"),
    _form("se.personnummer", r"(?:19|20)?\d{6}[-+]\d{4}"),
    _form("fi.hetu", r"\d{6}[-+A-FU-Y]\d{3}[0-9A-Y]"),
    _form("ca.sin", r"\d{3}[- ]\d{3}[- ]\d{3}", "sin", "social insurance"),
    _form("pl.pesel", r"\d{11}", "pesel"),
    _form("mx.curp", r"[A-Z]{4}\d{6}[HMX][A-Z]{5}[A-Z0-9]\d"),
    _form("ch.ssn", r"756\.\d{4}\.\d{4}\.\d{2}"),
    _form("cn.ric", r"[1-9]\d{5}(?:19|20)\d{9}[\dX]"),
)  # fmt: skip
"""What states count their people by, with six digits or more close together."""
MIXED = (
    _form("it.codicefiscale", r"[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]"),
    _form("in_.pan", r"[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]", "pan", "permanent account"),
    _form("", r"[A-Z0-9]{6,9}", "passport", "reisepass", "passeport", "passnummer"),
    _form("", r"[A-Z0-9][A-Z0-9-]{5,17}", "driver's license", "drivers license", "driving licence",
          "license number", "licence number", "führerschein"),
)  # fmt: skip
"""Those with letters between their digits."""


def cards(text: str, look: Glance) -> Iterator[Place]:
    for part in around(look, 0):
        for match in _CARD.finditer(text, *part):
            digits = re.sub(r"[ -]", "", match.group())
            if _free(text, *match.span()) and _ISSUER.fullmatch(digits) and _checks("luhn", digits):
                yield Place(*match.span(), "card")


def accounts(text: str, look: Glance) -> Iterator[Place]:
    for part in around(look, _IBAN_LENGTH):
        for match in _IBAN.finditer(text, *part):
            # What follows it may look like more of it: the longest start that checks is the number.
            said, start = match.group(), match.start()
            if start and text[start - 1].isalnum():
                continue
            for end in _ends(said):
                # A country's own check knows the banks that there were: the common one is enough.
                if _module("iban").is_valid(said[:end], check_country=False):
                    yield Place(start, start + end, "iban")
                    break


def national(text: str, look: Glance) -> Iterator[Place]:
    if not look.runs:
        return
    parts = tuple(around(look, _BESIDE))
    for form in FORMS if parts else ():
        if not form.cues or cues_in(look.low, form.cues):
            for part in parts:
                yield from _national(form, text, *part)
    for form in MIXED:
        for cue in cues_in(look.low, form.cues):
            for at in cued(look.low, cue):
                yield from _national(form, text, at, at + _NEAR)
        if not form.cues and look.longest >= _LONG:
            yield from _national(form, text, 0, len(text))


def _national(form: Form, text: str, start: int, end: int) -> Iterator[Place]:
    for match in form.pattern.finditer(text, start, end):
        start, end = match.span()
        if not _free(text, start, end) or not any(map(str.isdigit, match.group())):
            continue
        if form.said and not form.said.search(text[max(0, start - _NEAR) : start].lower()):
            continue
        if not form.module or _checks(form.module, match.group()):
            yield Place(start, end, "national_id")


def _ends(said: str) -> Iterator[int]:
    ends = [at for at in range(15, len(said)) if said[at] in " -"]
    yield from (len(said), *reversed(ends))


def _free(text: str, start: int, end: int) -> bool:
    """Whether it is no part of a longer number or word."""
    before, after = text[start - 1 : start] if start else "", text[end : end + 2]
    if before.isalnum() or before in ("_", "-", ".", "/") or after[:1].isalnum():
        return False
    return not (after[:1] in ("_", "-", ".", "/") and after[1:].isalnum())


@cache
def _module(name: str) -> Any:
    return import_module(f"stdnum.{name}")


def _checks(name: str, said: str) -> bool:
    return bool(_module(name).is_valid(said))
