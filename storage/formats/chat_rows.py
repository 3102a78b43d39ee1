"""Chat fine-tuning rows: {messages, tools?}, as OpenAI's fine-tuning files and most data sets; a
bare list of messages is one too.

Content may be text or parts; a `label` (KTO) becomes feedback on the row, `images` take the
places of their <image> marks. Anything else of a row (loss weights, ids) stays as attributes.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Feedback, Image, Message, Part, Text

from .messages import name_of, read_messages, read_tools
from .nested import nested
from .parsed import Context, Parsed, Rest
from .turns import conversation_trace

SOURCE = "import:chat_rows"

_ROW = frozenset(("messages", "tools", "functions", "label", "images"))
_NOT_OURS = frozenset(("request", "chosen", "choices", "call_type"))
"""Keys of logged calls, stored answers and preference pairs, which have messages too."""
_MARK = "<image>"


def recognise(sample: object) -> bool:
    if isinstance(sample, list):
        return _are_messages(sample)
    if not isinstance(sample, dict) or not _NOT_OURS.isdisjoint(sample):
        return False
    messages = sample.get("messages")
    return isinstance(messages, list) and "observations" not in sample


def read(row: dict[str, Any] | list[Any], context: Context) -> Parsed:
    if isinstance(row, list):
        row = {"messages": row}
    rest = context.rest()
    messages = read_messages(row.get("messages"), rest, "messages")
    if not messages:
        raise BadRecord("is empty: a conversation needs a message", field="messages")
    if row.get("images"):
        messages = _with_images(messages, row["images"], rest)
    tools = row_tools(row.get("tools", row.get("functions")), rest)
    rest.put_others(row, _ROW, "")
    label = row.get("label")
    if not isinstance(label, bool):
        rest.put("label", label)
    trace = conversation_trace(messages, tools, SOURCE, rest.take(), context)
    feedback = []
    if isinstance(label, bool):
        feedback = [
            Feedback(
                project=trace.project, target=trace.id, name="label", value=label, kind="boolean"
            )
        ]
    return Parsed([trace], feedback, rest.counts)


def _are_messages(sample: list[Any]) -> bool:
    """A bare list of messages is a row, and a file of one too."""
    head = sample[:8]
    return len(sample) > 1 and all(
        isinstance(one, dict)
        and isinstance(one.get("role"), str)
        and ("content" in one or "tool_calls" in one)
        for one in head
    )


def row_tools(value: object, rest: Rest) -> tuple[dict[str, Any], ...] | None:
    """Tools of a row, as a list or as JSON text; None where the row does not speak of them."""
    if isinstance(value, str):
        if not value.strip():
            return ()
        value = nested(value)
        if isinstance(value, str):
            raise BadRecord("is text that is not JSON", field="tools")
    return None if value is None else read_tools(value, rest, "tools")


def _with_images(messages: tuple[Message, ...], images: Any, rest: Rest) -> tuple[Message, ...]:
    """Puts each image where its mark stands, if there are as many marks as images."""
    if not isinstance(images, list):
        raise BadRecord(f"is {name_of(images)}, not a list", field="images")
    marks = sum(message.text.count(_MARK) for message in messages)
    if marks != len(images) or not all(isinstance(image, str) for image in images):
        rest.put("images", images)
        return messages
    left = iter(images)
    return tuple(
        Message(role=message.role, name=message.name, parts=tuple(_placed(message, left)))
        for message in messages
    )


def _placed(message: Message, left: Any) -> list[Part]:
    parts: list[Part] = []
    for part in message.parts:
        if not isinstance(part, Text) or _MARK not in part.text:
            parts.append(part)
            continue
        pieces = part.text.split(_MARK)
        for at, piece in enumerate(pieces):
            if at:
                parts.append(Image(url=next(left)))
            if piece:
                parts.append(Text(text=piece))
    return parts
