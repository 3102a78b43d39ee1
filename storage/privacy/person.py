"""Who and where a person is, by the form in which people say it: names, birthdays, streets.

A text enters; places leave. A name counts where a person says that it is one ("my name is …"),
never by a list of names: without a model a list flags every April and every Paris.
"""

import re
from collections.abc import Iterator

from storage.privacy.place import Glance, Place, cued, cues_in
from storage.privacy.words import NO_NAME

_WORD = r"(?:[A-ZÀ-ÖØ-ÞŁŚŽČŠ][^\W\d_]*(?:['’-][^\W\d_]+)*(?![\w@])|[A-Z]\.)"
_NAME = rf"{_WORD}(?:[ ](?:(?:van|von|de|der|den|del|da|di|bin|al|el|la|le)[ ])*{_WORD}){{0,3}}"
_FULL = rf"{_WORD}(?:[ ](?:(?:van|von|de|der|den|del|da|di|bin|al|el|la|le)[ ])*{_WORD}){{1,3}}"
_CUES: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    (("name",), re.compile(
        rf"(?i:names? (?:is|are)|name['’]s|name\s?[:=]|name[\"']\s{{0,8}}:)"
        rf"\s{{0,8}}[\"']?({_NAME})")),
    (("i'm ", "i am ", "i’m ", "this is ", "ich bin ", "je suis ", "soy "), re.compile(
        rf"[^\W\d_]+(?:['’]m| (?i:am|is|bin|suis))?\s{{1,8}}({_FULL})")),
    (("call me ", "heiße ", "heisse ", "m'appelle ", "me llamo ", "mi chiamo "), re.compile(
        rf"[\w'’]+(?: (?:me|llamo|chiamo))?\s{{1,8}}({_NAME})")),
    (("mr", "mrs", "ms", "mx", "dr", "prof", "herr", "frau", "mme", "señor"), re.compile(
        rf"(?:Mr|Mrs|Ms|Mx|Dr|Prof|Herrn?|Frau|Mme|Señora?)\.?[ ]({_NAME})")),
    (("dear ", "regards", "sincerely", "cheers", "grüße", "signed", "best,", "thanks,"), re.compile(
        rf"(?i:dear|regards|sincerely(?: yours)?|cheers|grüße|signed|best|thanks)"
        rf"(?:,?\s{{0,4}}?\n\s{{0,8}}|[ ](?=[A-Z])|:\s{{0,8}})({_NAME})")),
)  # fmt: skip
"""What must stand in the lower text, and what from there on says a name."""
_WHOSE = re.compile(
    r"(?i:my|his|her|their|our|your|full|first|last|sur|middle|maiden|customer|holder|patient|contact|client|"
    r"guest|child'?s|wife'?s|husband'?s|spouse'?s|son'?s|daughter'?s)[ _-]?$"
)
"""Before "name": another thing's has none of these, and then two words must follow."""

_BORN = re.compile(
    r"[^\W\d_]{0,20}(?:[ _-]?date| on| am| le|\.?b\.?)?[\"']?(?:[ ](?:is|was))?"
    r"\s{0,4}[:=]?\s{0,8}[\"']?"
    r"(\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}-\d{1,2}-\d{1,2}"
    r"|\d{1,2}(?:st|nd|rd|th)?\.? (?:of )?[A-Za-zäé]{3,9},? \d{4}"
    r"|[A-Z][a-z]{2,8}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4})"
)
"""What follows one of _BIRTH where it says a date."""
_BIRTH = ("birth", "born", "dob", "d.o.b", "gebor", "geburt", "nacimiento", "née", "né le")
_PART = r"[A-ZÀ-Þ](?:[^\W\d_]|['’.-])+\b"
_CITY = rf"{_PART}(?:[ ]{_PART}){{0,2}}"
_ENGLISH = re.compile(
    r"\d{1,6}[A-Za-z]?[ ](?:(?:[NSEW]|North|South|East|West)\.?[ ])?(?:[A-Z0-9][\w'’.-]*[ ]){1,4}"
    r"(?:(?:Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Ct|Pl|Sq|Terrace|Parkway|Pkwy|Highway|"
    r"Hwy|Crescent|Cir)\b\.?"
    # These are words as well: a street's stand at the end of something.
    r"|(?:Court|Way|Place|Square|Close|Circle|Gardens|Grove|Mews|Row)\b"
    r"(?=[,.;\n\"]|$|[ ](?:Apt|Unit|Flat|Suite|#)))"
    r"(?:,?[ ](?:Apt|Apartment|Suite|Ste|Unit|Flat|Floor|#)\.?[ ]?[\w-]{1,6})?"
    rf"(?:,[ ]{_CITY})?"
    r"(?:,?[ ][A-Z]{2}[ ]\d{5}(?:-\d{4})?|,?[ ][A-Z]{1,2}\d[A-Z\d]?[ ]\d[A-Z]{2})?"
)
_GERMAN = re.compile(
    r"(?<!\w)[A-ZÄÖÜ][\w.-]{0,60}?(?:straße|strasse|str\.|weg|platz|allee|gasse|ufer|damm|ring)"
    rf"[ ]\d{{1,4}}[ ]?[a-z]?\b(?:,?[ ](?:[A-Z]-)?\d{{4,5}}[ ]{_CITY})?"
)
_ROMANCE = re.compile(
    r"\d{1,4}(?:[ ]?(?:bis|ter))?,?[ ](?:rue|avenue|boulevard|place|chemin|allée|impasse|quai)[ ]"
    r"(?:(?:de|du|des|la|le|les)[ ]|[dl]['’])*[A-ZÀ-Þ][\w'’-]*(?:[ -][A-ZÀ-Þ][\w'’-]*){0,3}"
    rf"(?:,?[ ]\d{{5}}[ ]{_CITY})?"
)
_BEFORE_NUMBER = re.compile(
    r"(?:Calle|C/|Avenida|Avda\.|Plaza|Paseo|Via|Viale|Piazza|Corso|Rua)[ ]"
    rf"(?:(?:de|del|la|los|las|da|do|di)[ ])*{_CITY},?[ ](?:n[.º°][ ]?)?\d{{1,4}}"
    rf"(?:,?[ ]\d{{5}}[ ]{_CITY})?"
)
_BOX = re.compile(r"P\.?[ ]?O\.?[ ]?Box[ ]\d{1,6}", re.I)
_STREETS = (
    (("straße", "strasse", "str. ", "weg ", "platz ", "allee ", "gasse ", "ufer ", "damm ",
      "ring "), _GERMAN),
    ((" rue ", " avenue ", " boulevard ", " place ", " chemin ", " allée ", " impasse ",
      " quai "), _ROMANCE),
    (("calle ", "c/ ", "avenida ", "avda.", "plaza ", "paseo ", "via ", "viale ", "piazza ",
      "corso ", "rua "), _BEFORE_NUMBER),
    (("box ",), _BOX),
)  # fmt: skip


def names(text: str, look: Glance) -> Iterator[Place]:
    for cues, pattern in _CUES:
        for cue in cues_in(look.low, cues):
            for at in cued(look.low, cue):
                whose = cue == "name" and _WHOSE.search(text, max(0, at - 14), at)
                if at and text[at - 1].isalnum() and not whose:
                    continue
                if match := pattern.match(text, at):
                    start, end = _trimmed(text, *match.span(1))
                    told = cue != "name" or whose or _said_first(text, at, start, end)
                    if told and end > start:
                        yield Place(start, end, "name")


def _said_first(text: str, at: int, start: int, end: int) -> bool:
    """Whether it is two words after a "name" that begins a line: a file, a product, a tool have
    names too, and so has every object of JSON."""
    begins = not at or text[at - 1] == "\n"
    return begins and '"' not in text[at:start] and " " in text[start:end]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The words from the first on that may be a name's; none where the first is no name."""
    kept = start
    for word in re.finditer(r"[^ ]+", text[start:end]):
        if word.group().strip(".'’").casefold() in NO_NAME or len(word.group()) < 2:
            break
        kept = start + word.end()
    return start, kept


def birthdays(text: str, look: Glance) -> Iterator[Place]:
    for cue in cues_in(look.low, _BIRTH) if look.runs else ():
        for at in cued(look.low, cue):
            if match := _BORN.match(text, at + len(cue)):
                yield Place(*match.span(1), "birth_date")


def streets(text: str, look: Glance) -> Iterator[Place]:
    for start, end in look.runs:
        # A street's number is followed by its name, or by one letter and a blank.
        follows = text[end : end + 1].isupper() or text[end + 1 : end + 2] == " "
        if not follows or text[start - 1 : start].isalnum():
            continue
        if match := _ENGLISH.match(text, _last_number(text, start, end)):
            yield Place(*match.span(), "address")
    if not look.runs:
        return
    for words, pattern in _STREETS:
        if cues_in(look.low, words):
            for match in pattern.finditer(text):
                yield Place(*match.span(), "address")


def _last_number(text: str, start: int, end: int) -> int:
    """Of a run of digits with what stands between them, where its last one begins."""
    said = text[start:end].rstrip()
    return start + len(said) - len(re.split(r"\D", said)[-1])
