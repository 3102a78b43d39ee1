"""The dataset's row: what curation writes and the trainer reads, and its Parquet form.

Rows are parallel columns; lists of ids are native integer lists, messages are JSON text.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from flywheel.errors import CorruptFile
from flywheel.ids import canonical, digest_bytes
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
        said = (self.messages, self.completion, self.tools)
        return self.identity(*map(canonical, said))

    def identity(self, messages: bytes, completion: bytes, tools: bytes) -> str:
        """`id`, given what it is of as canonical JSON."""
        ids = self.tokens and (self.tokens.prompt_ids, self.tokens.completion_ids)
        apart = (self.label, self.pair_id) if self.label else ()
        posed = (self.environment, self.truth) if self.environment else ()
        others = canonical((ids, *apart, *posed))
        return digest_bytes(b"[%b,%b,%b,%b" % (messages, completion, tools, others[1:]))


_SINCE = ("label", "pair_id", "source", "tenant", "answered_by", "at", "rehearsed", "environment",
          "truth")  # fmt: skip
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "template_digest", "tokenizer_digest")
_JSON = ("messages", "completion", "tools", "sampling", "signals")
_PLAIN = (
    "trace_id", "span_id", "problem_id", "slice", "conversation", "user", "text",
    "finish_reason", "reward", "confirmed_by", "origin", "fidelity", "weight",
)  # fmt: skip
_messages = msgspec.json.Decoder(tuple[Message, ...])
_completion = msgspec.json.Decoder(Message)
_tools = msgspec.json.Decoder(tuple[dict[str, Any], ...])
_sampling = msgspec.json.Decoder(Sampling | None)
_signals = msgspec.json.Decoder(tuple[Signal, ...])


_UNKNOWN = b'"unknown"'
"""The tag of the one part of a message that holds objects as they came."""
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


class Encoded(NamedTuple):
    """What is made of a row's content: its ids, and the JSON that they are digests of."""

    id: str
    prompt: str
    """Digest of messages and tools."""
    content: str
    """Of these, completion, label and pair."""
    messages: str
    completion: str
    tools: str


def encoded(rows: Iterable[TrainingRow]) -> list[Encoded]:
    """Each row's content, encoded once for all that is made of it."""
    offered: dict[int, tuple[object, bytes, bytes]] = {}
    found = []
    for row in rows:
        if (tools := offered.get(id(row.tools))) is None:
            tools = row.tools, *_both(row.tools)
            offered[id(row.tools)] = tools
        messages, prompt = _both(row.messages)
        completion, answer = _both(row.completion)
        asked, apart = b"[%b,%b" % (prompt, tools[2]), canonical((row.label, row.pair_id))
        found.append(
            Encoded(
                row.identity(prompt, answer, tools[2]),
                digest_bytes(asked + b"]"),
                digest_bytes(b"[%b,%b,%b,%b" % (prompt, answer, tools[2], apart[1:])),
                messages.decode(), completion.decode(), tools[1].decode(),
            )
        )  # fmt: skip
    return found


def _both(value: object) -> tuple[bytes, bytes]:
    """`value` as JSON and as canonical JSON, which are one where no object in it is free."""
    told = msgspec.json.encode(value)
    free = _UNKNOWN in told or (isinstance(value, tuple) and value and isinstance(value[0], dict))
    return told, canonical(value) if free else told


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
    for name, place in (("id", 0), ("messages", 3), ("completion", 4), ("tools", 5)):
        columns[name] = [one[place] for one in told]
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
