"""The dataset's row: what curation writes and the trainer reads, and its Parquet form.

Rows are parallel columns; lists of ids are native integer lists, messages are JSON text.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from flywheel.errors import CorruptFile
from flywheel.ids import digest
from flywheel.records import Experts, Message, Record, Sampling, Tokens

if TYPE_CHECKING:
    import polars as pl

Label: TypeAlias = Literal["chosen", "rejected", "desirable", "undesirable"]
GOOD: tuple[Label, ...] = ("chosen", "desirable")


class Signal(Record, frozen=True, kw_only=True):
    """One grade that a row's reward is made of, or that was asked for it."""

    reward: str
    value: float | None
    """None = it could not be given."""
    weight: float = 1.0
    kind: Literal["code", "judge", "human", "feedback"] = "code"
    confirmed_by: str | None = None
    grader: str = ""
    lineage: str | None = None
    """Of a judge: the model that judged, as its project names it. None = no judge, or not known."""


class TrainingRow(Record, frozen=True, kw_only=True):
    trace_id: str
    span_id: str
    messages: tuple[Message, ...]
    """The prompt, whole."""
    completion: Message
    """The answer that is trained on."""
    problem_id: str | None = None
    slice: str = "all"
    conversation: str | None = None
    user: str | None = None
    text: str = ""
    """The user's own words, without what all prompts share."""
    tools: tuple[dict[str, Any], ...] = ()
    tokens: Tokens | None = None
    """What was sampled; None = the row must be rendered from its messages."""
    sampling: Sampling | None = None
    """How it was sampled. None = it was not, or it is not known."""
    finish_reason: str | None = None
    reward: float | None = None
    confirmed_by: str | None = None
    """What outside the model says that this answer is right, or as its label says; None = nothing
    does."""
    origin: str = "rollout"
    fidelity: str | None = None
    source: str | None = None
    """The sending system, as its trace names it."""
    tenant: str | None = None
    answered_by: str | None = None
    """The deployment that gave the answer, else the model's name as recorded; None = a person, or
    not known."""
    at: int | None = None
    """When it was answered, nanoseconds since the epoch."""
    corrected: bool = False
    """Whether the answer is a person's correction or demonstration, rather than a model's."""
    rehearsed: str | None = None
    """The earlier dataset that it is repeated from."""
    signals: tuple[Signal, ...] = ()
    """The grades behind `reward`, in order of their names."""
    weight: float = 1.0
    label: Label | None = None
    """What people, or rewards, prefer. None = nobody was asked: the answer itself is learnt."""
    pair_id: str | None = None
    """Of a chosen and a rejected answer to one prompt, which go together. None = in no pair."""
    environment: str | None = None
    """Of a problem that is yet to be answered: whose it is. None = the row is an answer."""
    truth: str | None = None
    """Of such a problem: what answers are compared with, as JSON. None = not known."""

    @property
    def id(self) -> str:
        """Of what is trained on: the same prompt and answer have the same id, where they are in
        the same pair or bear the same label."""
        ids = self.tokens and (self.tokens.prompt_ids, self.tokens.completion_ids)
        apart = (self.label, self.pair_id) if self.label else ()
        posed = (self.environment, self.truth) if self.environment else ()
        return digest(self.messages, self.completion, self.tools, ids, *apart, *posed)


_SINCE = ("label", "pair_id", "source", "tenant", "answered_by", "at", "rehearsed", "environment",
          "truth")  # fmt: skip
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "template_digest", "tokenizer_digest")
_JSON = ("messages", "completion", "tools", "sampling", "signals")


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


def wide(rows: Sequence[TrainingRow], ids: Sequence[str] | None = None) -> "pl.DataFrame":
    """`rows` as the columns of the file.

    Args:
        ids: the rows' own, where they are known already.
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
    named = [row.id for row in rows] if ids is None else ids
    flat = [_flat(row, of) for row, of in zip(rows, named, strict=True)]
    return pl.DataFrame(
        {name: [one[name] for one in flat] for name in schema}, schema=schema, strict=True
    )


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
        return rows_in(pl.read_parquet(path))
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


def _flat(row: TrainingRow, named: str) -> dict[str, Any]:
    flat = {name: getattr(row, name) for name in row.__struct_fields__ if name != "tokens"}
    for name in _JSON:
        flat[name] = msgspec.json.encode(flat[name]).decode()
    tokens = row.tokens
    return {
        **flat,
        "id": named,
        "prompt_ids": tokens and list(tokens.prompt_ids),
        "completion_ids": tokens and list(tokens.completion_ids),
        "logprobs": list(tokens.logprobs) if tokens and tokens.logprobs is not None else None,
        "policy_versions": tokens and list(tokens.policy_versions),
        "template_digest": tokens and tokens.template_digest,
        "tokenizer_digest": tokens and tokens.tokenizer_digest,
        "experts": tokens and tokens.experts and msgspec.msgpack.encode(tokens.experts),
    }


def _experts(packed: bytes | None) -> Experts | None:
    return None if packed is None else msgspec.msgpack.decode(packed, type=Experts)


def _row(flat: dict[str, Any]) -> TrainingRow:
    tokens = None
    if flat["completion_ids"] is not None:
        given = {name: flat[name] for name in _TOKENS}
        given["policy_versions"] = flat["policy_versions"] or ()
        given["experts"] = _experts(flat.get("experts"))
        tokens = msgspec.convert(given, Tokens)
    plain = (
        "trace_id", "span_id", "problem_id", "slice", "conversation", "user", "text",
        "finish_reason", "reward", "confirmed_by", "origin", "fidelity", "weight",
    )  # fmt: skip
    since: dict[str, Any] = {name: flat.get(name) for name in _SINCE}
    found = TrainingRow(
        messages=msgspec.json.decode(flat["messages"], type=tuple[Message, ...]),
        completion=msgspec.json.decode(flat["completion"], type=Message),
        tools=msgspec.json.decode(flat["tools"], type=tuple[dict[str, Any], ...]),
        tokens=tokens,
        # Datasets of before have none of these.
        sampling=msgspec.json.decode(flat.get("sampling") or "null", type=Sampling | None),
        signals=msgspec.json.decode(flat.get("signals") or "[]", type=tuple[Signal, ...]),
        corrected=flat.get("corrected") or False,
        **since,
        **{name: flat[name] for name in plain},
    )
    # Whoever else writes such a file may put anything into a column.
    return msgspec.convert(msgspec.structs.asdict(found), TrainingRow)
