"""Alpaca rows: {instruction, input?, output, system?, history?}, one answer each.

Instruction and input are one message of the user, with a blank line between; an empty input is
none. `history` holds earlier pairs of question and answer.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Message

from .messages import name_of
from .parsed import Context, Parsed, Rest
from .turns import conversation_trace

SOURCE = "import:alpaca"

_ROW = frozenset(("instruction", "input", "output", "system", "history"))


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict) or "messages" in sample:
        return False
    return isinstance(sample.get("instruction"), str) and isinstance(sample.get("output"), str)


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    asked = prompt(row, rest)
    if not isinstance(row.get("output"), str):
        raise BadRecord(f"is {name_of(row.get('output'))}, not text", field="output")
    said = Message(role="assistant", parts=(rest.text(row["output"]),))
    rest.put_others(row, _ROW, "")
    trace = conversation_trace((*asked, said), None, SOURCE, rest.take(), context)
    return Parsed([trace], [], rest.counts)


def prompt(row: dict[str, Any], rest: Rest) -> tuple[Message, ...]:
    """All that comes before the answer."""
    instruction, given = row.get("instruction"), row.get("input")
    if not isinstance(instruction, str):
        raise BadRecord(f"is {name_of(instruction)}, not text", field="instruction")
    if given is not None and not isinstance(given, str):
        raise BadRecord(f"is {name_of(given)}, not text", field="input")
    messages = []
    system = row.get("system")
    if isinstance(system, str) and system:
        messages.append(Message(role="system", parts=(rest.text(system),)))
    elif system != "":
        rest.put("system", system)
    history = row.get("history")
    for at, pair in enumerate(history if isinstance(history, list) else ()):
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRecord("is no pair of question and answer", field=f"history[{at}]")
        for role, text in zip(("user", "assistant"), pair, strict=True):
            messages.append(Message(role=role, parts=(rest.text(str(text)),)))
    if not isinstance(history, list):
        rest.put("history", history)
    whole = f"{instruction}\n\n{given}" if given and instruction else instruction or given or ""
    messages.append(Message(role="user", parts=(rest.text(whole),)))
    return tuple(messages)
