"""Chat JSON lines, as OpenAI's fine-tuning takes them: supervised, preference and reinforcement.

Only the last answer of a line is trained on: earlier ones of the assistant have `weight` 0.
"""

from flywheel.chat import to_chat
from flywheel.records import Message
from flywheel.rows import TrainingRow
from storage.exports.layout import Item, Layout, is_good


def answer(row: TrainingRow) -> Item:
    before = [
        {**said, "weight": 0} if said["role"] == "assistant" else said
        for said in to_chat(row.messages)
    ]
    label = is_good(row)
    told = {} if label is None else {"label": label}
    return {"messages": [*before, *to_chat((row.completion,))], **_tools(row), **told}


def pair(better: TrainingRow, worse: TrainingRow) -> Item:
    return {
        "input": {"messages": to_chat(better.messages), **_tools(better)},
        "preferred_output": _only(better.completion),
        "non_preferred_output": _only(worse.completion),
    }


def problem(row: TrainingRow) -> Item:
    truth = {} if row.truth is None else {"reference_answer": row.truth}
    return {"messages": to_chat(row.messages), **_tools(row), **truth, "id": row.problem_id}


def _only(message: Message) -> list[Item]:
    return to_chat((message,))


def _tools(row: TrainingRow) -> Item:
    return {"tools": list(row.tools)} if row.tools else {}


LAYOUT = Layout(
    file="train.jsonl",
    read_by="OpenAI's fine-tuning, and whatever reads its files; one JSON object a line",
    shapes={"answer": answer, "pair": pair, "problem": problem},
)
