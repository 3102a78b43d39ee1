"""A candidate row's narrow columns: all that rules, gates, differences and explanations look at.

Training rows enter; leaves one polars frame, a row each, small enough that a million fit in memory.
What is wide (messages, tokens, texts) stays on disk and is read only where it is trained on.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from flywheel.records import Refusal, Text, ToolCall, Truncated
from flywheel.rows import GOOD, Encoded, TrainingRow, encoded
from storage.tokens_of import count_tokens

if TYPE_CHECKING:
    import polars as pl

_TEXT, _INT, _FLOAT, _BOOL = "String", "Int64", "Float64", "Boolean"
NARROW: dict[str, str] = {
    "row_id": _TEXT, "trace_id": _TEXT, "span_id": _TEXT, "problem_id": _TEXT, "slice": _TEXT,
    "conversation": _TEXT, "user": _TEXT, "tenant": _TEXT, "source": _TEXT, "origin": _TEXT,
    "answered_by": _TEXT, "at": _INT, "corrected": _BOOL, "rehearsed": _TEXT,
    "fidelity": _TEXT, "has_tokens": _BOOL, "flaw": _TEXT, "finish_reason": _TEXT,
    "reward": _FLOAT, "confirmed_by": _TEXT, "weight": _FLOAT, "label": _TEXT, "pair_id": _TEXT,
    "prompt": _TEXT, "content": _TEXT, "prompt_tokens": _INT, "answer_tokens": _INT,
    "estimated": _BOOL, "answer_characters": _INT, "logprobs": _INT, "highest_logprob": _FLOAT,
    "signals": _INT, "lowest_signal": _FLOAT, "highest_signal": _FLOAT, "outside": _BOOL,
    "judges": _INT, "judged_by": "List(String)",
}  # fmt: skip
"""Column -> polars type.

prompt, content: digests of the messages and tools; of these, answer, label and pair. flaw: why the
answer is none that can be learnt from (truncated, refused, empty); null = it is one. estimated:
tokens were counted from characters. logprobs: how many; highest_logprob: one that is no
number counts as infinite. signals: grades of weight that have a value; lowest and highest of them;
outside: one of them comes from people, feedback, or code with ground truth; judges: how many of
them judges gave; judged_by: the lineages of these.
"""


def narrow(rows: Sequence[TrainingRow], told: Sequence[Encoded] | None = None) -> "pl.DataFrame":
    """The narrow columns of `rows`, in their order.

    Args:
        told: as `flywheel.row_files.wide` takes it.
    """
    import polars as pl

    told = encoded(rows) if told is None else told
    found = [_narrow(*both) for both in zip(rows, told, strict=True)]
    columns = zip(*found, strict=True) if found else ((),) * len(NARROW)
    return pl.DataFrame(
        [
            column(name, values, kind)
            for (name, kind), values in zip(NARROW.items(), columns, strict=True)
        ]
    )


def polars_type(kind: str) -> Any:
    """The type that a name such as "Int64" or "List(String)" stands for."""
    import polars as pl

    inner = kind.removeprefix("List(").removesuffix(")")
    return pl.List(getattr(pl, inner)) if inner != kind else getattr(pl, kind)


def column(name: str, values: Sequence[Any], kind: str) -> "pl.Series":
    """`values`, with None for null, as a column of the type that `kind` names."""
    import polars as pl

    whole = polars_type(kind)
    if not kind.startswith("List("):
        return pl.Series(name, values, whole)
    # Polars makes a series of each list first: that takes longer than all other columns together.
    import numpy as np
    import pyarrow as pa

    flat = pl.Series("", list(chain.from_iterable(filter(None, values))), whole.inner)
    ends = np.cumsum([0, *(len(one) if one else 0 for one in values)])
    absent = pa.array(np.array([one is None for one in values], bool))
    lists = pa.LargeListArray.from_arrays(ends, flat.to_arrow(), mask=absent)
    return pl.Series(name, lists, whole)


def _narrow(row: TrainingRow, told: Encoded) -> tuple[Any, ...]:
    prompt, answer, how = count_tokens(row)
    logprobs = row.tokens.logprobs if row.tokens else None
    said = row.completion.text.strip() or "".join(
        call.name + call.arguments for call in row.completion.tool_calls
    )
    given = [one for one in row.signals if one.weight and one.value is not None]
    values = [one.value for one in given if one.value is not None]
    return (
        told.id, row.trace_id, row.span_id, row.problem_id, row.slice,
        row.conversation, row.user, row.tenant, row.source, row.origin,
        row.answered_by, row.at, row.corrected, row.rehearsed,
        row.fidelity, row.tokens is not None, flaw(row), row.finish_reason,
        # A label is a reward, whether or not a number was given as well.
        row.reward if row.label is None or row.reward is not None else float(row.label in GOOD),
        row.confirmed_by, row.weight, row.label, row.pair_id,
        told.prompt, told.content,
        prompt, answer, bool(how), len(said),
        None if logprobs is None else len(logprobs), _highest(logprobs),
        len(values), min(values, default=None), max(values, default=None),
        row.confirmed_by is not None or any(one.kind in ("human", "feedback") for one in given),
        sum(one.kind == "judge" for one in given),
        sorted({one.lineage or "unknown" for one in given if one.kind == "judge"}),
    )  # fmt: skip


def flaw(row: TrainingRow) -> str | None:
    """Why its answer is none to learn from; None = it is one."""
    everything = (*row.messages, row.completion)
    if any(isinstance(part, Truncated) for message in everything for part in message.parts):
        return "a part of it was truncated"
    parts = row.completion.parts
    if any(isinstance(part, Refusal) for part in parts):
        return "the model refused"
    said = any(isinstance(part, Text) and part.text.strip() for part in parts)
    if not said and not any(isinstance(part, ToolCall) for part in parts):
        return "the answer is empty"
    return None


def _highest(logprobs: tuple[float, ...] | None) -> float | None:
    if not logprobs:
        return None
    unlike = float("-inf")  # of a token that was sampled; NaN is not above it either
    return max(logprobs) if all(value > unlike for value in logprobs) else float("inf")
