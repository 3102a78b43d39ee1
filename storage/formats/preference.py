"""Preference pairs: {chosen, rejected} after a prompt, conversations, messages or an instruction.

Both answers are choices of one model call, the chosen one first, so that it is the answer of the
trace; where they run over several turns, each is a branch of its own. The preference is feedback
of whoever made the set, and stands on the span too. Rows with a `label` (KTO) are chat_rows.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Choice, Feedback, Message

from .alpaca import prompt
from .chat_rows import row_tools
from .episode import Episode, Past, imported
from .messages import name_of, read_messages
from .parsed import Context, Parsed, Rest
from .sharegpt import read_turns

SOURCE = "import:preference"

_SIDES = ("chosen", "rejected")
_ROW = frozenset(("conversations", "messages", "prompt", "instruction", "input", "system",
                  "history", "tools", "chosen", "rejected"))  # fmt: skip
_Messages = tuple[Message, ...]


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    return all(isinstance(sample.get(side), str | dict | list) for side in _SIDES)


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    before = _before(row, rest)
    chosen, rejected = (_side(row.get(side), rest, side) for side in _SIDES)
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    if shared and not before:  # the prompt is repeated in both
        before, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    if not chosen or not rejected:
        raise BadRecord("is empty: a pair needs both answers", field="chosen or rejected")
    tools = row_tools(row.get("tools"), rest)
    rest.put_others(row, _ROW, "")
    episode = Episode(tools=tools)
    episode.hear(*before)
    if len(chosen) == len(rejected) == 1:
        own = {"preference": {"chosen": 0, "rejected": 1}, **rest.take()}
        both = (Choice(message=chosen[0]), Choice(message=rejected[0]))
        episode.answer(both, attributes=own)
    else:
        past = episode.past
        own = rest.take()
        _branch(episode, past, rejected, "0-rejected", {"preference": "rejected"})
        _branch(episode, past, chosen, "1-chosen", {"preference": "chosen", **own})
    external = digest(before, chosen, rejected, tools)
    trace = imported(SOURCE, external, episode.spans(), context)
    said = Feedback(
        project=trace.project, target=trace.id, name="preference", value="chosen over rejected",
        kind="category", by="the data set",
    )  # fmt: skip
    return Parsed([trace], [said], rest.counts)


def _branch(
    episode: Episode, past: Past, messages: _Messages, name: str, own: dict[str, Any]
) -> None:
    """One side of several turns; each of its answers is a call after the one before."""
    above: tuple[str, ...] = ()
    for at, message in enumerate(messages):
        if message.role == "assistant":
            above = (
                episode.answer(
                    (Choice(message=message),), id=f"{name}-{at:06d}", past=past, parents=above,
                    attributes=dict(own),
                ),
            )  # fmt: skip
        past = past.plus(message)


def _before(row: dict[str, Any], rest: Rest) -> _Messages:
    if isinstance(row.get("conversations"), list):
        said = read_turns(row["conversations"], rest, "conversations")
    elif isinstance(row.get("messages"), list):
        said = read_messages(row["messages"], rest, "messages")
    elif isinstance(row.get("instruction"), str):
        return prompt(row, rest)
    else:
        said = () if row.get("prompt") is None else _side(row["prompt"], rest, "prompt", "user")
    system = row.get("system")
    if isinstance(system, str) and system:
        return (Message(role="system", parts=(rest.text(system),)), *said)
    return said


def _side(value: object, rest: Rest, path: str, role: str = "assistant") -> _Messages:
    """One message or several, in either dialect, or its text."""
    if isinstance(value, str):
        return (Message(role=role, parts=(rest.text(value),)),)
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], dict) and "from" in values[0]:
        return read_turns(values, rest, path)
    if not all(isinstance(one, dict) for one in values):
        raise BadRecord(f"is {name_of(value)}, not an answer", field=path)
    return read_messages(values, rest, path)
