"""Text that others wrote, as a terminal or a page may show it.

Enter any text: a model's, a server's, a user's. Leaves the same with those characters spelled out
that hide, move or reorder what is shown, or that a terminal acts on; line breaks and tabs stay.
Counts and articles beside words stand here too.
"""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffb\ud800-\udfff]"
)


def plain(text: str) -> str:
    return _HIDDEN.sub(lambda found: f"\u27e8U+{ord(found.group()):04X}\u27e9", text)


def many(count: int, what: str, several: str | None = None) -> str:
    """1 trace, 2 traces; 1 copy, 2 copies."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {several or what + 's'}"


def article(word: str) -> str:
    """An assistant, a user: by the first letter, with "u" as in "user"."""
    return f"{'an' if word[:1].lower() in tuple('aeio') else 'a'} {word}"


def in_markdown(text: str) -> str:
    """On one line, with nothing that Markdown or HTML would act on."""
    flat = plain(" ".join(text.split())[:600])
    for mark in "\\`*_[]|#!":
        flat = flat.replace(mark, "\\" + mark)
    return flat.replace("<", "&lt;").replace(">", "&gt;")
