"""One episode as the report shows it: what was said, in order, with what each step earned.

Enter a trace and its grades, all of it written by models and tools. Leaves plain data of strings
and numbers; every string is bounded, and characters that would hide or reorder text are spelled
out. The page shows strings as text and as nothing else.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from flywheel.plain import plain
from flywheel.records import (
    File,
    Grade,
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Truncated,
)

LONGEST = 8_000
"""Characters of one piece."""
MESSAGES = 200
"""Of one episode: the first half and the last half."""
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+\Z")
_PICTURE_SIZE = 400_000


def shown(text: str) -> str:
    """`text` bounded, with control and direction characters spelled out."""
    return plain(text[:LONGEST]) + (
        f"\n\u2026 {len(text) - LONGEST} more characters" if len(text) > LONGEST else ""
    )


def conversation(trace: Trace, grades: Sequence[Grade]) -> list[dict[str, Any]]:
    """Messages in order of time. A call whose input does not go on from what was said before it
    begins a branch, which shows its whole input."""
    steps: dict[str, list[Grade]] = {}
    for grade in grades:
        if grade.span_id is not None:
            steps.setdefault(grade.span_id, []).append(grade)
    said: list[Message] = []
    blocks: list[dict[str, Any]] = []
    for span in sorted(trace.spans, key=lambda span: (span.start or 0, span.id)):
        if span.call is None:
            if steps.get(span.id) or span.error or span.kind == "agent":
                blocks.append(_of_harness(span, steps.get(span.id, ())))
            continue
        goes_on = list(span.call.input[: len(said)]) == said
        new = span.call.input[len(said) :] if goes_on else span.call.input
        if not goes_on:
            blocks.append({"role": "branch", "parts": []})
        blocks += [_block(message) for message in new]
        answers = [choice.message for choice in span.call.choices]
        blocks += [_block(message, span, steps.get(span.id, ())) for message in answers]
        if not answers:
            blocks.append(_of_harness(span, steps.get(span.id, ())))
        said = [*span.call.input, *answers[:1]]
    return _bounded(blocks)


def rewards(grades: Iterable[Grade]) -> list[dict[str, Any]]:
    """What the whole episode earned."""
    return [_grade(grade) for grade in grades if grade.span_id is None]


def _block(
    message: Message, span: Span | None = None, steps: Iterable[Grade] = ()
) -> dict[str, Any]:
    block: dict[str, Any] = {
        "role": shown(message.role)[:40],
        "parts": [_part(part) for part in message.parts],
    }
    if span is not None:
        block |= {"answer": True, "steps": [_grade(grade) for grade in steps]}
        if span.error:
            block["error"] = shown(span.error)
        if span.call and span.call.choices and span.call.choices[0].finish_reason:
            block["finish"] = shown(span.call.choices[0].finish_reason)[:40]
    return block


def _of_harness(span: Span, steps: Iterable[Grade]) -> dict[str, Any]:
    """A step that is no message: a tool that was run, a sub-agent, a call without an answer."""
    parts = [_part(part) for part in (span.tool, span.result) if part is not None]
    block: dict[str, Any] = {
        "role": f"{span.kind}: {shown(span.name)[:80]}",
        "parts": parts,
        "steps": [_grade(grade) for grade in steps],
    }
    return block | ({"error": shown(span.error)} if span.error else {})


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"t": "text", "x": shown(text)}
        case Reasoning(text=text):
            return {"t": "reasoning", "x": shown(text)}
        case Refusal(text=text):
            return {"t": "refusal", "x": shown(text)}
        case ToolCall(name=name, arguments=arguments):
            return {"t": "call", "name": shown(name)[:80], "x": shown(arguments)}
        case ToolResult(content=content, name=name, is_error=failed):
            return {"t": "result", "name": shown(name or "")[:80], "x": shown(content),
                    "failed": bool(failed)}  # fmt: skip
        case Image(url=url) if url and len(url) < _PICTURE_SIZE and _PICTURE.match(url):
            return {"t": "picture", "x": url}
        case Image(url=url):
            return {
                "t": "note",
                "x": f"a picture: {shown(url or 'only its digest was kept')[:200]}",
            }
        case File(name=name):
            return {"t": "note", "x": f"a file: {shown(name or 'without a name')[:200]}"}
        case Truncated(kept=kept, size=size):
            return {"t": "text", "x": shown(kept) + f"\n\u2026 cut: it had {size} bytes"}
    return {"t": "note", "x": "a part of a kind that is not known here"}


def _grade(grade: Grade) -> dict[str, Any]:
    return {
        "name": shown(grade.reward)[:80],
        "value": grade.value,
        "weight": grade.weight,
        "reason": shown(grade.reason) if grade.reason else None,
    }


def _bounded(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(blocks) <= MESSAGES:
        return blocks
    note = f"{len(blocks) - MESSAGES} messages between these are in results.jsonl"
    middle = {"role": "left out", "parts": [{"t": "note", "x": note}]}
    return [*blocks[: MESSAGES // 2], middle, *blocks[-MESSAGES // 2 :]]
