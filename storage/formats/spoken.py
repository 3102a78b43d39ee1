"""Few-shot rows: a whole conversation in one text, "user: …" by "assistant: …".

tau-bench writes {messages_display}, Hermes {example}, in capitals and with its calls and tools in
tags. A turn "None" is content that was null: the call behind it is not in the text, and is not made
up.
"""

import re
from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Message, Part, Unknown

from .episode import Episode, imported, told
from .messages import read_tools
from .nested import nested
from .parsed import Context, Parsed, Rest
from .parts import tool_call, tool_result

SOURCE = "import:spoken"

_KEYS = ("messages_display", "example")
_turn = re.compile(r"^(user|assistant|tool|system): ?|^(USER|ASSISTANT|TOOL|SYSTEM):[ \n]?", re.M)
_call = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_tools = re.compile(r"<tools>\s*(.*?)\s*</tools>", re.DOTALL)


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    text = next((sample[key] for key in _KEYS if isinstance(sample.get(key), str)), None)
    return text is not None and _turn.match(_bare(text[:200])) is not None


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    key = next((key for key in _KEYS if isinstance(row.get(key), str)), None)
    text = _bare(row[key]) if key else ""
    marks = list(_turn.finditer(text))
    if not marks or marks[0].start() != 0:
        raise BadRecord("does not begin with a speaker, such as user:", field=key)
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    tools = None
    messages = []
    for mark, end in zip(marks, ends, strict=True):
        role = (mark.group(1) or mark.group(2)).lower()
        said = text[mark.end() : end].removesuffix("\n")
        if role == "system" and (found := _tools.search(said)):
            offered = nested(found.group(1))
            tools = read_tools(offered, rest, "tools") if isinstance(offered, list) else tools
        messages.append(Message(role=role, parts=tuple(_parts(role, said, rest))))
    rest.put_others(row, frozenset(_KEYS), "")
    episode = Episode(tools=tools)
    told(episode, messages)
    external, own = digest(messages, tools), rest.take()
    trace = imported(SOURCE, external, episode.spans(), context, attributes=own)
    return Parsed([trace], [], rest.counts)


def _parts(role: str, said: str, rest: Rest) -> list[Part]:
    if role == "tool":
        return tool_result(said, None, None, rest, "tool")
    if role == "assistant" and said.strip() == "None":
        return []
    calls = _call.findall(said) if role == "assistant" else []
    if not calls:
        return [rest.text(said)]
    before = said[: said.index("<tool_call>")].strip()
    parts: list[Part] = [rest.text(before)] if before else []
    for text in calls:
        call = nested(text)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            parts.append(Unknown(kind="tool_call", raw=rest.bounded(text)))
            continue
        parts += tool_call(call["name"], call.get("arguments"), call.get("id"), rest)
    return parts


def _bare(text: str) -> str:
    """Without the fence around an example."""
    text = text.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].removesuffix("```").rstrip()
    return text
