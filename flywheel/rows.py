"""The dataset's row: what curation writes and the trainer reads, and what its id is a digest of.

Rows as columns and files: `flywheel.row_files`.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from flywheel.ids import canonical, digest_bytes
from flywheel.records import Message, Record, Sampling, Tokens

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


_UNKNOWN = b'"unknown"'
"""The tag of the one part of a message that holds objects as they came."""


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
