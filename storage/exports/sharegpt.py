"""ShareGPT lines: turns with `from` and `value`, the system's text and the tools beside them.

A call is a turn of its own (`function_call`, JSON text), what the tool said another
(`observation`). Pairs have `chosen` and `rejected` turns after the conversation.
"""

from collections.abc import Iterator

from flywheel.errors import BadRecord
from flywheel.ids import canonical
from flywheel.records import Message
from flywheel.rows import TrainingRow
from storage.exports.layout import Item, Layout, chat_of, is_good, tools_of

_FROM = {"user": "human", "assistant": "gpt", "tool": "observation"}
_SYSTEM = ("system", "developer")


def answer(row: TrainingRow) -> Item:
    label = is_good(row)
    told = {} if label is None else {"label": label}
    return {"conversations": [*_turns(row.messages), *_turns((row.completion,))],
            **_beside(row), **told}  # fmt: skip


def pair(better: TrainingRow, worse: TrainingRow) -> Item:
    return {
        "conversations": list(_turns(better.messages)),
        **_beside(better),
        "chosen": _one(better.completion),
        "rejected": _one(worse.completion),
    }


def _turns(messages: tuple[Message, ...]) -> Iterator[Item]:
    for place, said in enumerate(chat_of(messages, thought=False)):
        if said["role"] in _SYSTEM:
            if place:
                raise BadRecord("a system message stands amid the conversation")
            continue
        if said["role"] not in _FROM:
            raise BadRecord(f"ShareGPT has no speaker {said['role']!r}")
        if said["content"] or not said.get("tool_calls"):
            yield {"from": _FROM[said["role"]], "value": said["content"] or ""}
        for call in said.get("tool_calls", ()):
            yield {"from": "function_call", "value": canonical(call["function"]).decode()}


def _one(message: Message) -> Item:
    turns = list(_turns((message,)))
    if len(turns) != 1:
        raise BadRecord("an answer of the pair is several turns in ShareGPT")
    return turns[0]


def _beside(row: TrainingRow) -> Item:
    system = row.messages[0].text if row.messages and row.messages[0].role in _SYSTEM else ""
    tools = tools_of(row)
    return {**({"system": system} if system else {}), **({"tools": tools} if tools else {})}


LAYOUT = Layout(
    file="train.jsonl",
    read_by="LLaMA-Factory, Axolotl and others as `sharegpt`; one JSON object a line",
    shapes={"answer": answer, "pair": pair},
)
