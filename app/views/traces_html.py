"""One trace as HTML pieces: conversation, span tree, grades, feedback, tokens. All text is escaped.

Enter records; leave markup for `st.html` (see `safe_html`).
"""

import html
from collections.abc import Sequence

import msgspec

from app.views.frame import when
from app.views.safe_html import said, table, text, token
from app.views.traces_data import Row
from app.views.words import seconds
from flywheel.records import (
    Choice,
    Feedback,
    File,
    Grade,
    Image,
    Message,
    ModelCall,
    Part,
    Reasoning,
    Refusal,
    Text,
    Tokens,
    ToolCall,
    ToolResult,
    Truncated,
)

_ROLES = {"user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
_MOST_MESSAGES = 200
_FOLDED = 400
"""Characters from which on a system prompt, the same in every trace, is folded."""
_LONG = 6000
"""The same, of any other message but the answer."""
_MOST_TOKENS = 4000


def conversation(call: ModelCall, choice: Choice | None, words: Sequence[str] = ()) -> str:
    """The prompt of a model call and one of its answers."""
    shown = call.input[-_MOST_MESSAGES:]
    parts = []
    if len(shown) < len(call.input):
        parts.append(f'<p class="cut">{len(call.input) - len(shown):,} earlier messages</p>')
    parts += [turn(one, words=words) for one in shown]
    if choice is not None:
        ended = choice.finish_reason or "unknown: the end is not recorded"
        parts.append(turn(choice.message, note=f"ended by: {ended}", answer=True, words=words))
    return "".join(parts)


def turn(
    message: Message, *, note: str = "", answer: bool = False, words: Sequence[str] = ()
) -> str:
    kind = _ROLES.get(message.role, "system") + (" answer" if answer else "")
    who = f"<span>{text(message.role, longest=40)}</span>"
    if message.name:
        who += f"<span>{text(message.name, longest=80)}</span>"
    if note:
        who += f"<span>{text(note, longest=200)}</span>"
    body = "".join(_part(part, words) for part in message.parts)
    body = body or '<span class="none">no content</span>'
    same = message.role in ("system", "developer")
    if not answer and len(message.text) > (_FOLDED if same else _LONG):
        body = f"<details><summary>{len(message.text):,} characters</summary>{body}</details>"
    return f'<div class="turn {kind}"><div class="who">{who}</div>{body}</div>'


def _part(part: Part, words: Sequence[str]) -> str:
    match part:
        case Text():
            return said(part.text, words=words)
        case Reasoning():
            return said(part.text, "thought", words=words)
        case Refusal():
            return said(f"refused: {part.text}", words=words)
        case ToolCall():
            return said(f"{part.name}({part.arguments})", "code", words=words)
        case ToolResult():
            wrong = "error: " if part.is_error else ""
            return said(wrong + part.content, "code", words=words)
        case Truncated():
            cut = f'<span class="cut">the whole has {part.size:,} bytes</span>'
            return said(part.kept, words=words) + cut
        case Image() | File():
            where = part.url or part.digest or "not kept"
            name = part.name if isinstance(part, File) else part.media_type
            told = " ".join(filter(None, (type(part).__name__.lower(), name, where)))
            return f'<span class="cut">{text(told, longest=300)}</span>'
        case _:
            return said(msgspec.json.encode(part.raw, enc_hook=str).decode(), "code")


def tree(rows: Sequence[Row], total: int) -> str:
    """The spans with their times, as bars on one line of time."""
    starts = [row.span.start for row in rows if row.span.start is not None]
    ends = [row.span.end for row in rows if row.span.end is not None]
    first = min(starts, default=0)
    whole = max(1, max([*ends, *starts], default=1) - first)
    lines = ["<tr><th>span</th><th>kind</th><th>after</th><th>took</th><th></th></tr>"]
    for row in rows:
        span = row.span
        notes = "".join(
            f'<div class="cut">{text(one, longest=400)}</div>'
            for one in (
                f"error: {span.error}" if span.error else "",
                "its parent has not come" if row.orphan else "",
                f"also under {', '.join(row.also_under)}" if row.also_under else "",
            )
            if one
        )
        name = span.name or (span.tool.name if span.tool else "") or span.id
        began = None if span.start is None else (span.start - first) / 1e9
        took = None if span.start is None or span.end is None else (span.end - span.start) / 1e9
        lines.append(
            f'<tr><td style="padding-left:{min(row.depth, 24) * 1.1:.1f}rem">'
            f'<span title="{html.escape(span.id, quote=True)}">{text(name, longest=120)}</span>'
            f"{notes}</td><td>{span.kind}</td><td>{seconds(began)}</td><td>{seconds(took)}</td>"
            f"<td>{_bar(span.kind, bool(span.error), began, took, whole / 1e9)}</td></tr>"
        )
    more = f'<p class="cut">{total - len(rows):,} more spans</p>' if total > len(rows) else ""
    return f"<table>{''.join(lines)}</table>{more}"


def _bar(kind: str, bad: bool, began: float | None, took: float | None, whole: float) -> str:
    if began is None:
        return '<span class="none">no times</span>'
    left = 100 * min(1.0, max(0.0, began / whole))
    width = 100 * min(1.0, max(0.0, (took or 0) / whole))
    look = "bad" if bad else kind
    return (
        f'<div class="bar"><i class="{look}" style="left:{left:.2f}%;width:{width:.2f}%"></i></div>'
    )


def grades(given: Sequence[Grade]) -> str:
    rows = [
        (
            one.reward + (f" (span {one.span_id})" if one.span_id else ""),
            None if one.value is None else f"{one.value:g}",
            "looked at" if one.weight == 0 else f"{one.weight:g}",
            one.reason or "",
            one.kind,
            one.confirmed_by or "nothing outside the model",
            when(one.at or None),
        )
        for one in given[:200]
    ]
    return table(("reward", "value", "weight", "why", "by", "rests on", "given"), rows)


def feedback(given: Sequence[Feedback]) -> str:
    rows = [
        (one.name, _value(one.value), one.kind, one.by or "", when(one.at or None),
         str(one.attributes.get("comment", "")))
        for one in given[-200:]
    ]  # fmt: skip
    return table(("name", "value", "kind", "by", "said", "comment"), rows)


def _value(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


def tokens(of: Tokens, pieces: Sequence[str]) -> str:
    """The sampled tokens, coloured by how likely each was."""
    logprobs: Sequence[float | None] = of.logprobs or [None] * len(of.completion_ids)
    shown = "".join(
        token(piece, number, logprob)
        for piece, number, logprob in zip(
            pieces[:_MOST_TOKENS], of.completion_ids[:_MOST_TOKENS], logprobs[:_MOST_TOKENS],
            strict=True,
        )
    )  # fmt: skip
    more = len(of.completion_ids) - _MOST_TOKENS
    cut = f'<p class="cut">{more:,} more tokens</p>' if more > 0 else ""
    return f'<div class="tokens" dir="auto">{shown}</div>{cut}'
