"""The words of a text, as texts are compared by: the same for every comparison that keeps training
and evaluation apart."""

import re
import unicodedata

# Scripts that put no space between words: each of their characters counts as one.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    """Case, width, ligatures and punctuation apart."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
