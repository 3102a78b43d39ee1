"""verl's Parquet: prompt, data_source, ability, reward_model, extra_info; answers have `messages`
too, which its supervised trainer reads.

`reward_model.ground_truth` is the problem's truth, else the answer that was found good.
"""

from typing import TYPE_CHECKING, Any

from flywheel.rows import TrainingRow
from storage.exports.layout import Item, Kind, Layout, chat_of, messages_type, text_of, tools_of

if TYPE_CHECKING:
    import pyarrow as pa


def answer(row: TrainingRow) -> Item:
    said = chat_of((row.completion,))
    return {**_asked(row, text_of(row.completion) if not row.completion.tool_calls else ""),
            "messages": [*chat_of(row.messages), *said]}  # fmt: skip


def problem(row: TrainingRow) -> Item:
    return _asked(row, row.truth or "")


def _asked(row: TrainingRow, truth: str) -> Item:
    return {
        "data_source": row.environment or row.source or row.origin,
        "prompt": chat_of(row.messages),
        "ability": row.slice,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"id": row.id, "split": "train", "problem": row.problem_id,
                       "reward": row.reward, "tools": tools_of(row)},
    }  # fmt: skip


def schema(kind: Kind) -> "pa.Schema":
    import pyarrow as pa

    text, messages = pa.string(), messages_type()
    columns: dict[str, Any] = {
        "data_source": text, "prompt": messages, "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"id": text, "split": text, "problem": text,
                                 "reward": pa.float64(), "tools": text}),
    }  # fmt: skip
    return pa.schema(columns if kind == "problem" else {**columns, "messages": messages})


LAYOUT = Layout(
    file="train.parquet",
    read_by="verl, as `data.train_files`; its reward function is yours to name",
    shapes={"answer": answer, "problem": problem},
    schema=schema,
)
