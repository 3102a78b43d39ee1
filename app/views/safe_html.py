"""Text from outside as HTML that shows it and never runs it: the one place that makes such HTML.

Any text enters; leaves markup in which it is only text: escaped, bounded, control and direction
characters made visible, each piece in a direction of its own. Pages hand it to `st.html`.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence

LONGEST = 20_000
"""Characters of one piece that a page shows; the rest is told in words and can be downloaded."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)

STYLE = """<style>
.fw { font-size: .95rem; line-height: 1.5; color-scheme: light dark;
  --line: color-mix(in srgb, currentColor 18%, transparent);
  --soft: color-mix(in srgb, currentColor 62%, transparent);
  --tint: color-mix(in srgb, currentColor 5%, transparent); }
.fw .turn { border: 1px solid var(--line); border-left-width: 4px; border-radius: 6px;
  padding: .45rem .75rem; margin: 0 0 .5rem; }
.fw .turn.user { border-left-color: #3b82c4; } .fw .turn.assistant { border-left-color: #2a9d8f; }
.fw .turn.tool { border-left-color: #b7791f; } .fw .turn.system { border-left-color: var(--line); }
.fw summary { cursor: pointer; color: var(--soft); font-size: .85rem; }
.fw .turn.answer { background: var(--tint); }
.fw .who { font-size: .78rem; color: var(--soft); display: flex; gap: .6rem; flex-wrap: wrap; }
.fw .said { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; }
.fw .said.code { font-family: ui-monospace, monospace; font-size: .85rem; }
.fw .thought { color: var(--soft); font-style: italic; }
.fw .cut, .fw .none { color: var(--soft); font-size: .85rem; }
.fw .ctl { border: 1px solid var(--line); border-radius: 3px; font-size: .7em; padding: 0 .15em;
  color: #b3261e; }
.fw table { border-collapse: collapse; width: 100%; font-size: .88rem; }
.fw th, .fw td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; unicode-bidi: plaintext; }
.fw th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.fw .tokens { white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace;
  font-size: .88rem; line-height: 1.9; }
.fw .tokens span { border-radius: 3px; padding: .1em 0; box-shadow: inset -1px 0 var(--line); }
.fw .bar { position: relative; height: .8rem; min-width: 12rem; background: var(--tint); }
.fw .bar i { position: absolute; top: 0; bottom: 0; min-width: 2px; border-radius: 2px;
  background: #3b82c4; } .fw .bar i.model { background: #2a9d8f; } .fw .bar i.bad {
  background: #b3261e; }
.fw mark { background: #e9b94966; color: inherit; border-radius: 2px; }
.fw ins { text-decoration: none; background: #2a9d8f44; } .fw del { background: #b3261e33; }
</style>"""


def wrapped(*pieces: str) -> str:
    """A whole fragment for `st.html`, with its style."""
    return f'{STYLE}<div class="fw">{"".join(pieces)}</div>'


def text(value: str, *, longest: int = LONGEST, words: Sequence[str] = ()) -> str:
    """`value` as text. `words` are marked where they stand."""
    cut = value[:longest]
    parts = _marked(cut, words) if words else _visible(cut)
    if len(value) > longest:
        parts += (
            f'<span class="cut"> … {len(value) - longest:,} of {len(value):,} characters are not '
            "shown</span>"
        )
    return parts


def said(value: str, kind: str = "", *, words: Sequence[str] = ()) -> str:
    """A block of text in a direction of its own."""
    return f'<div class="said {kind}" dir="auto">{text(value, words=words)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """A table of texts; None = unknown."""
    lines = [f"<tr>{''.join(f'<th>{html.escape(one)}</th>' for one in head)}</tr>"]
    for row in rows:
        lines.append(f"<tr>{''.join(map(_cell, row))}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(value: str | None) -> str:
    shown = '<span class="none">unknown</span>' if value is None else text(value, longest=2000)
    return f'<td dir="auto">{shown}</td>'


def token(piece: str, number: int, logprob: float | None) -> str:
    """One sampled token, the redder the less likely it was; hovering tells its numbers."""
    known = logprob is not None and math.isfinite(logprob)
    chance = math.exp(min(0.0, logprob)) if known and logprob is not None else None
    told = f"token {number}"
    if chance is not None:
        told += f"\nlogprob {logprob:.4f}\nprobability {chance:.4f}"
    else:
        told += "\nlogprob unknown"
    colour = "" if chance is None else f"background: rgba(200, 60, 40, {_heat(chance):.2f})"
    shown = _visible(piece) if piece else "·"
    return f'<span style="{colour}" title="{html.escape(told)}">{shown}</span>'


def _heat(chance: float) -> float:
    """0 for a certain token, up to 0.65 for one of a thousandth and less: legible on any ground."""
    return round(0.65 * min(1.0, -math.log(max(chance, 1e-3)) / math.log(1e3)), 2)


def _visible(value: str) -> str:
    """Escaped, with what the eye does not see written out."""
    clean = value.encode("utf-8", "replace").decode()
    out, last = [], 0
    for found in _CONTROL.finditer(clean):
        out.append(html.escape(clean[last : found.start()]))
        out.append(f'<span class="ctl">{_name(found[0])}</span>')
        last = found.end()
    return "".join([*out, html.escape(clean[last:])])


def _name(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"U+{code:04X}"


def _marked(value: str, words: Sequence[str]) -> str:
    wanted = [re.escape(one) for one in words if one][:32]
    if not wanted:
        return _visible(value)
    pieces = re.split(f"({'|'.join(sorted(wanted, key=len, reverse=True))})", value, flags=re.I)
    return "".join(
        f"<mark>{_visible(one)}</mark>" if number % 2 else _visible(one)
        for number, one in enumerate(pieces)
    )
