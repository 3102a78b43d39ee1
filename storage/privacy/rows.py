"""Rows and problems without what is personal or secret in them: what curation does before anything
of a dataset is written.

Rows enter one after another, each a conversation of its own; they leave in the same order, and
counts. Token ids and log-probabilities of what was changed are gone: they are of another text. Ids
that say who somebody is become keyed ones, so that what has one id still has.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from flywheel.data_section import PrivacySection
from flywheel.home import Home
from flywheel.lineage import RuleCount
from flywheel.plain import many
from flywheel.records import (
    File,
    Image,
    Message,
    Part,
    Problem,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    Truncated,
    Unknown,
)
from flywheel.rows import TrainingRow
from storage.privacy.clean import Cleaning
from storage.privacy.find import EVERYTHING, Policy, find, policy_of
from storage.privacy.key import other_name, secret

_HELD: dict[type, tuple[str, ...]] = {
    Text: ("text",), Reasoning: ("text",), Refusal: ("text",), ToolCall: ("arguments",),
    ToolResult: ("content",), Image: ("url",), File: ("name", "url"), Unknown: ("raw",),
    Truncated: ("kept",),
}  # fmt: skip
"""What of each part somebody said."""
_P = TypeVar("_P")


class Privacy:
    """What a project's rows are cleaned by, and what came of it."""

    def __init__(self, key: bytes, policy: Policy = EVERYTHING) -> None:
        self._key, self._policy = key, policy
        self.counts: Counter[str] = Counter()
        """What was found, by kind."""
        self.rows = self.changed = self.tokens_gone = 0
        """Rows looked at; those in which something was; those whose token ids went with it."""

    def clean(self, rows: Iterable[TrainingRow]) -> Iterator[TrainingRow]:
        """Each as it is asked for; `count` tells of those that passed."""
        return map(self._row, rows)

    def problem(self, problem: Problem) -> Problem:
        """Its truth in the same words as its prompt; of another id where anything was found."""
        made = self._begun(problem.messages)
        messages, tools = _messages(problem.messages, made), made.value(problem.tools)
        return _with(
            problem,
            messages=messages,
            tools=tools,
            text=made.text(problem.text),
            answer=made.value(problem.answer),
            attributes=made.value(problem.attributes),
            conversation=self.name(problem.conversation),
            user=self.name(problem.user),
        )

    def forms(self, problems: Iterable[Problem]) -> Iterator[tuple[str, Problem]]:
        """Those that hold something, by their ids, as a row that touches them reads now."""
        for one in problems:
            if (clean := self.problem(one)) is not one:
                yield one.id, clean

    def name(self, name: str | None) -> str | None:
        return other_name(name, self._key) if name and find(name, self._policy) else name

    def count(self) -> RuleCount:
        """As one of a dataset's rules: it changes rows, and takes none."""
        found = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        note = f"{found or 'nothing'} found, in {many(self.changed, 'row')}"
        if self.tokens_gone:
            note += f"; the token ids of {self.tokens_gone} went, since their text is another now"
        return RuleCount(rule="privacy", rows_in=self.rows, rows_out=self.rows, note=note)

    def _row(self, row: TrainingRow) -> TrainingRow:
        made = self._begun(row.messages)
        said: dict[str, Any] = {
            "tools": made.value(row.tools),
            "messages": _messages(row.messages, made),
            "completion": _message(row.completion, made),
        }
        other = any(one is not getattr(row, name) for name, one in said.items())
        if other:
            said["tokens"] = None
            said["fidelity"] = "renderable" if row.fidelity == "trainable" else row.fidelity
        clean = _with(
            row,
            **said,
            text=made.text(row.text),
            truth=row.truth and made.text(row.truth),
            sampling=row.sampling and _sampling(row.sampling, made),
            conversation=self.name(row.conversation),
            user=self.name(row.user),
            tenant=self.name(row.tenant),
        )
        self.rows += 1
        self.changed += clean is not row
        self.tokens_gone += other and row.tokens is not None
        self.counts.update(made.counts)
        return clean

    def _begun(self, messages: tuple[Message, ...]) -> Cleaning:
        made = Cleaning(self._policy)
        made.leave_out(message.text for message in messages)
        return made


def privacy_of(home: Home, section: PrivacySection) -> Privacy | None:
    """None = the project cleans nothing at curation."""
    if "curation" not in section.at:
        return None
    return Privacy(secret(home.redaction_key), policy_of(section))


def _with(record: _P, **fields: Any) -> _P:
    """The same record where no field is another."""
    new = {name: one for name, one in fields.items() if one != getattr(record, name)}
    return msgspec.structs.replace(record, **new) if new else record  # type: ignore[type-var]


def _messages(messages: tuple[Message, ...], made: Cleaning) -> tuple[Message, ...]:
    clean = tuple([_message(message, made) for message in messages])
    return clean if any(a is not b for a, b in zip(clean, messages, strict=True)) else messages


def _message(message: Message, made: Cleaning) -> Message:
    parts = tuple([_part(part, made) for part in message.parts])
    return _with(message, parts=parts, name=message.name and made.text(message.name))


def _part(part: Part, made: Cleaning) -> Part:
    clean = _with(part, **{name: made.value(getattr(part, name)) for name in _HELD[type(part)]})
    if isinstance(clean, Reasoning) and clean is not part:
        return msgspec.structs.replace(clean, signature=None)
    return clean


def _sampling(sampling: Any, made: Cleaning) -> Any:
    return _with(sampling, stop=made.value(sampling.stop), other=made.value(sampling.other))
