"""Training rows as columns, and as a dataset's Parquet file.

Rows enter, or frames of their columns; leaves a file whose bytes depend on the rows and their order
alone, and out of it the same rows. Lists of ids are native integer lists, messages are JSON text.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import CorruptFile
from flywheel.records import Experts, Message, Sampling, Tokens
from flywheel.rows import Encoded, Signal, TrainingRow, encoded

if TYPE_CHECKING:
    import polars as pl

_SINCE = ("label", "pair_id", "source", "tenant", "answered_by", "at", "rehearsed", "environment",
          "truth")  # fmt: skip
"""Columns that a file of an earlier version may lack: unknown there."""
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "template_digest", "tokenizer_digest")
_PLAIN = (
    "trace_id", "span_id", "problem_id", "slice", "conversation", "user", "text",
    "finish_reason", "reward", "confirmed_by", "origin", "fidelity", "weight",
)  # fmt: skip
_messages = msgspec.json.Decoder(tuple[Message, ...])
_completion = msgspec.json.Decoder(Message)
_tools = msgspec.json.Decoder(tuple[dict[str, Any], ...])
_sampling = msgspec.json.Decoder(Sampling | None)
_signals = msgspec.json.Decoder(tuple[Signal, ...])

_GROUP = 8192
"""Rows of one row group of the file: cut by count alone, so that equal rows give equal bytes."""


def write_rows(path: Path, rows: list[TrainingRow]) -> None:
    """Writes `rows` as Parquet, in the order given; equal rows give equal bytes."""
    write_wide(path, [wide(rows)])


def write_wide(path: Path, frames: "Iterable[pl.DataFrame]") -> None:
    """Likewise what `wide` made, frame after frame: however they are cut, the bytes are equal."""
    import polars as pl
    import pyarrow.parquet as pq

    left = wide([])
    schema = left.to_arrow().schema
    with pq.ParquetWriter(path, schema, compression="zstd", write_statistics=False) as file:
        for frame in frames:
            left = pl.concat([left, frame]) if len(left) else frame
            whole = len(left) - len(left) % _GROUP
            for start in range(0, whole, _GROUP):
                file.write_table(left[start : start + _GROUP].rechunk().to_arrow().cast(schema))
            left = left[whole:]
        if len(left):
            file.write_table(left.rechunk().to_arrow().cast(schema))


def wide(rows: Sequence[TrainingRow], told: Sequence[Encoded] | None = None) -> "pl.DataFrame":
    """`rows` as the columns of the file.

    Args:
        told: parallel to them, where it is known already.
    """
    import polars as pl

    schema: dict[str, Any] = {
        "id": pl.String, "trace_id": pl.String, "span_id": pl.String, "problem_id": pl.String,
        "slice": pl.String, "conversation": pl.String, "user": pl.String, "text": pl.String,
        "messages": pl.String, "completion": pl.String, "tools": pl.String,
        "prompt_ids": pl.List(pl.Int32), "completion_ids": pl.List(pl.Int32),
        "logprobs": pl.List(pl.Float64), "policy_versions": pl.List(pl.String),
        "template_digest": pl.String, "tokenizer_digest": pl.String,
        "sampling": pl.String, "finish_reason": pl.String,
        "reward": pl.Float64, "confirmed_by": pl.String,
        "origin": pl.String, "fidelity": pl.String, "weight": pl.Float64,
        "label": pl.String, "pair_id": pl.String, "experts": pl.Binary, "source": pl.String,
        "tenant": pl.String, "answered_by": pl.String, "at": pl.Int64, "corrected": pl.Boolean,
        "rehearsed": pl.String, "signals": pl.String, "environment": pl.String,
        "truth": pl.String,
    }  # fmt: skip
    told = encoded(rows) if told is None else told
    columns = {**_columns(rows), **_sampled(rows)}
    for name in ("id", "messages", "completion", "tools"):
        columns[name] = [getattr(one, name) for one in told]
    return pl.DataFrame({name: columns[name] for name in schema}, schema=schema, strict=True)


def rows_in(frame: "pl.DataFrame") -> list[TrainingRow]:
    """The rows that `wide` made columns of."""
    return [_row(flat) for flat in frame.iter_rows(named=True)]


def read_rows(path: Path) -> list[TrainingRow]:
    """The rows of a file that `write_rows` wrote.

    Raises:
        CorruptFile: it is not such a file.
    """
    import polars as pl

    try:
        return rows_in(pl.read_parquet(path, glob=False))
    except (
        OSError, KeyError, TypeError, pl.exceptions.PolarsError, pl.exceptions.PanicException,
        msgspec.DecodeError,
    ) as error:  # fmt: skip
        raise CorruptFile(f"{path} is not a dataset's rows file: {error}") from error


def read_batches(path: Path, size: int = 2000) -> Iterator[list[TrainingRow]]:
    """Likewise in the file's order, so few at a time that they fit in memory.

    Raises:
        CorruptFile: as `read_rows`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(size):
                yield [_row(flat) for flat in batch.to_pylist()]
    except (OSError, KeyError, TypeError, pa.ArrowException, msgspec.DecodeError) as error:
        raise CorruptFile(f"{path} is not a dataset's rows file: {error}") from error


def _columns(rows: Sequence[TrainingRow]) -> dict[str, list[Any]]:
    plain = {name: [getattr(row, name) for row in rows] for name in (*_PLAIN, *_SINCE, "corrected")}
    encode = msgspec.json.encode
    return {
        **plain,
        "sampling": ["null" if row.sampling is None else encode(row.sampling).decode()
                     for row in rows],
        "signals": [encode(row.signals).decode() for row in rows],
    }  # fmt: skip


def _sampled(rows: Sequence[TrainingRow]) -> dict[str, list[Any]]:
    """Columns of the rows' tokens."""
    names = ("prompt_ids", "completion_ids", "logprobs", "policy_versions")
    found = [row.tokens for row in rows]
    columns: dict[str, list[Any]] = {
        name: [None if one is None or (value := getattr(one, name)) is None else list(value)
               for one in found]
        for name in names
    }  # fmt: skip
    for name in ("template_digest", "tokenizer_digest"):
        columns[name] = [one and getattr(one, name) for one in found]
    columns["experts"] = [
        one and one.experts and msgspec.msgpack.encode(one.experts) for one in found
    ]
    return columns


def _experts(packed: bytes | None) -> Experts | None:
    return None if packed is None else msgspec.msgpack.decode(packed, type=Experts)


def _row(flat: dict[str, Any]) -> TrainingRow:
    tokens = None
    if flat["completion_ids"] is not None:
        given = {name: flat[name] for name in _TOKENS}
        given["policy_versions"] = flat["policy_versions"] or ()
        given["experts"] = _experts(flat.get("experts"))
        tokens = msgspec.convert(given, Tokens)
    found = {
        "messages": _messages.decode(flat["messages"]),
        "completion": _completion.decode(flat["completion"]),
        "tools": _tools.decode(flat["tools"]),
        "tokens": tokens,
        # Datasets of before have none of these.
        "sampling": _sampling.decode(flat.get("sampling") or "null"),
        "signals": _signals.decode(flat.get("signals") or "[]"),
        "corrected": flat.get("corrected") or False,
    }
    found |= {name: flat[name] for name in _PLAIN}
    found |= {name: flat.get(name) for name in _SINCE}
    # Whoever else writes such a file may put anything into a column.
    return msgspec.convert(found, TrainingRow)
