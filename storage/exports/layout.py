"""What a layout is: how an answer, a pair and a problem are written for those who read that layout.

A training row enters, or two of a pair; leaves a plain object. Invariant: a row that the layout
cannot hold whole is refused with its reason (BadRecord), and counted; nothing is left out silently.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from flywheel.chat import to_chat
from flywheel.errors import BadRecord
from flywheel.ids import canonical
from flywheel.records import Message, Reasoning, Text
from flywheel.rows import GOOD, TrainingRow

if TYPE_CHECKING:
    import pyarrow as pa

Item = dict[str, Any]
Kind = Literal["answer", "pair", "problem"]
"""What a dataset consists of: answers to prompts, two answers to one prompt each, or prompts that
are yet to be answered."""


@dataclass(frozen=True)
class Layout:
    file: str
    """Where the data lie in the folder: JSON lines, or Parquet by its ending."""
    read_by: str
    """How the folder is read, for its card."""
    shapes: Mapping[Kind, Callable[..., Item]] = field(default_factory=dict)
    """By what the dataset consists of; a pair's takes the better answer and the worse one. A kind
    that is missing cannot be written so."""
    schema: "Callable[[Kind], pa.Schema] | None" = None
    """Of Parquet. None = JSON lines."""
    beside: Callable[[Kind], Mapping[str, str]] = lambda kind: {}
    """Name -> text of further files."""
    copied: bool = False
    """The data are the dataset's own file, as it is."""


def chat_of(messages: tuple[Message, ...], *, thought: bool = True) -> list[Item]:
    """Messages whose content is one text or none, as chat templates take them.

    Args:
        thought: whether the model's reasoning stands beside its text, as `reasoning_content`.

    Raises:
        BadRecord: one of them holds more than text.
    """
    return [said for message in messages for said in _said(message, thought)]


def _said(message: Message, thought: bool) -> list[Item]:
    texts = [part for part in message.parts if isinstance(part, Text)]
    if len(texts) > 1:
        rest = tuple(part for part in message.parts if not isinstance(part, Text))
        joined = Text(text="".join(part.text for part in texts))
        message = Message(role=message.role, name=message.name, parts=(joined, *rest))
    said = to_chat((message,))
    if any(isinstance(one["content"], list) for one in said):
        raise BadRecord("a message of it holds more than text")
    reasons = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
    if reasons and thought:
        said[0]["reasoning_content"] = reasons
    return said


def tools_of(row: TrainingRow) -> str | None:
    """Its tools as JSON text; None where none were offered."""
    return canonical(row.tools).decode() if row.tools else None


def is_good(row: TrainingRow) -> bool | None:
    """What its label says; None where it has none."""
    return None if row.label is None else row.label in GOOD


def text_of(message: Message) -> str:
    """
    Raises:
        BadRecord: it is not one plain text.
    """
    if any(not isinstance(part, Text | Reasoning) for part in message.parts):
        raise BadRecord("its answer is not plain text")
    return message.text


def messages_type() -> Any:
    """The Parquet type of a list of chat messages; a key that a message has not is null."""
    import pyarrow as pa

    call = pa.struct({
        "id": pa.string(), "type": pa.string(),
        "function": pa.struct({"name": pa.string(), "arguments": pa.string()}),
    })  # fmt: skip
    return pa.list_(pa.struct({
        "role": pa.string(), "content": pa.string(), "reasoning_content": pa.string(),
        "name": pa.string(), "refusal": pa.string(), "tool_calls": pa.list_(call),
        "tool_call_id": pa.string(),
    }))  # fmt: skip
