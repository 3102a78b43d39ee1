"""The words of a text, as texts are compared by: the same for every comparison that keeps training
and evaluation apart."""

import html
import re
import unicodedata

# Scripts that put no space between words: each of their characters counts as one.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt])")
# Accents, vowel points of Arabic and Hebrew, selectors of a glyph's form.
_MARKS = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\ufe00-\ufe0f]")
_UNSEEN = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_ALIKE = str.maketrans(
    "\u0430\u0432\u0435\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb\u04cf"
    "\u03b1\u03b2\u03b5\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03f2\u03f3\u0131\u0269",
    "abekmhopctyxijsdqwhlabeikvoptuxcjii",
)
"""Small letters of Cyrillic and Greek that look like Latin ones (Unicode Technical Standard 39)."""
_PLAIN = bytes(
    ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256)
)


def words_of(text: str) -> list[str]:
    """Apart from case, width, ligatures, punctuation, accents, what is not seen, look-alikes of
    another script, and what markup and JSON put around and between words."""
    return spaced(text).decode().split()


def spaced(text: str) -> bytes:
    """The same words as UTF-8, with spaces between and around them."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda met: chr(int(met[1], 16)) if met[1] else " ", text)
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    if text.isascii():
        return text.encode().translate(_PLAIN)
    folded = unicodedata.normalize("NFKD", _UNSEEN.sub("", text))
    folded = unicodedata.normalize("NFKC", _MARKS.sub("", folded)).casefold()
    return " ".join(_WORD.findall(folded.translate(_ALIKE))).encode()
