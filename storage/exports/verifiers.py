"""Problems as a taskset of the verifiers package, which prime-rl trains on, and answers as the
rows that its supervised trainer reads: prompt, completion, answer, info, task, example_id.

The taskset's reward is a comparison with the truth. Rewards of our environments come with a job
that is handed over (`flywheel train` with another engine), not with a folder of data.
"""

from pathlib import Path

from flywheel.ids import canonical
from flywheel.rows import TrainingRow
from storage.exports.layout import Item, Kind, Layout, chat_of, tools_of

TASKSET = "flywheel_problems.py"


def answer(row: TrainingRow) -> Item:
    return {**_asked(row), "completion": chat_of((row.completion,)), "reward": row.reward}


def problem(row: TrainingRow) -> Item:
    return {**_asked(row), "answer": row.truth}


def _asked(row: TrainingRow) -> Item:
    info = {"id": row.id, "problem": row.problem_id, "slice": row.slice, "tools": tools_of(row)}
    return {
        "example_id": row.id,
        "prompt": [_without_nulls(said) for said in chat_of(row.messages)],
        "info": canonical(info).decode(),
        "task": row.environment or row.source or row.origin,
    }


def _without_nulls(said: Item) -> Item:
    return {name: value for name, value in said.items() if value is not None or name == "content"}


def beside(kind: Kind) -> dict[str, str]:
    if kind != "problem":
        return {}
    source = Path(__file__).with_name("verifiers_taskset.py").read_text(encoding="utf-8")
    return {TASKSET: source}


LAYOUT = Layout(
    file="train.jsonl",
    read_by=f"the verifiers package, where the folder is on the path: `{TASKSET}` is the taskset",
    shapes={"answer": answer, "problem": problem},
    beside=beside,
)
