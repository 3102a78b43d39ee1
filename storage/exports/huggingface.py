"""A folder that Hugging Face's `datasets` loads: Parquet under data/, described in its README.

Columns as TRL reads them: prompt and completion, prompt with chosen and rejected, prompt and label.
"""

from typing import TYPE_CHECKING

from flywheel.rows import TrainingRow
from storage.exports.layout import Item, Kind, Layout, chat_of, is_good, messages_type, tools_of

if TYPE_CHECKING:
    import pyarrow as pa


def answer(row: TrainingRow) -> Item:
    return {
        "prompt": chat_of(row.messages), "completion": chat_of((row.completion,)),
        "label": is_good(row), "reward": row.reward, "confirmed_by": row.confirmed_by,
        **_told(row),
    }  # fmt: skip


def pair(better: TrainingRow, worse: TrainingRow) -> Item:
    return {
        "prompt": chat_of(better.messages), "chosen": chat_of((better.completion,)),
        "rejected": chat_of((worse.completion,)), "confirmed_by": better.confirmed_by,
        **_told(better),
    }  # fmt: skip


def problem(row: TrainingRow) -> Item:
    return {"prompt": chat_of(row.messages), "answer": row.truth, "problem": row.problem_id,
            "environment": row.environment, **_told(row)}  # fmt: skip


def _told(row: TrainingRow) -> Item:
    return {"id": row.pair_id or row.id, "tools": tools_of(row), "slice": row.slice,
            "origin": row.origin, "source": row.source, "weight": row.weight}  # fmt: skip


def schema(kind: Kind) -> "pa.Schema":
    import pyarrow as pa

    messages, text = messages_type(), pa.string()
    own = {
        "answer": {"prompt": messages, "completion": messages, "label": pa.bool_(),
                   "reward": pa.float64(), "confirmed_by": text},
        "pair": {"prompt": messages, "chosen": messages, "rejected": messages,
                 "confirmed_by": text},
        "problem": {"prompt": messages, "answer": text, "problem": text, "environment": text},
    }[kind]  # fmt: skip
    told = {"id": text, "tools": text, "slice": text, "origin": text, "source": text,
            "weight": pa.float64()}  # fmt: skip
    return pa.schema({**own, **told})


LAYOUT = Layout(
    file="data/train-00000-of-00001.parquet",
    read_by='`datasets.load_dataset("FOLDER")`; `tools` is JSON text',
    shapes={"answer": answer, "pair": pair, "problem": problem},
    schema=schema,
)
