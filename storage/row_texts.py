"""What of a training row is compared with held-out problems, text by text, and of those problems.

Rows enter, in batches; leaves each different text once, with the rows that it is of. The user's own
words and all that the user said are compared as such; in whatever else is learnt from or read
(instructions, tools, answers, thoughts) a held-out text is looked for, for there it leaks as well.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Literal, NamedTuple

from flywheel.records import Message, Problem, Reasoning, ToolCall, ToolResult
from flywheel.rows import TrainingRow

CHUNK_ROWS, CHUNK_CHARACTERS = 2048, 4_000_000
LEAST = 10
"""Characters under which nothing can lie in a text that would be looked for there."""
Part = Literal["own", "all", "turn", "beside"]
"""The user's own words; all that the user said; one earlier turn of it; what anybody else said."""


class Unit(NamedTuple):
    part: Part
    text: str


class Chunk(NamedTuple):
    """So few rows that their trigrams fit in memory."""

    units: list[Unit]
    """Each different one once."""
    rows: list[list[int]]
    """Parallel to units: places of the rows that it is of."""


def chunks(
    rows: Sequence[TrainingRow], without: Set[int], known: Set[str] = frozenset()
) -> Iterator[Chunk]:
    """
    Args:
        without: places of rows that are not looked at.
        known: instructions that are compared with nothing: the held-out problems' own.
    """
    found: dict[Unit, list[int]] = {}
    count = characters = 0
    for place, row in enumerate(rows):
        if place in without:
            continue
        count += 1
        for unit in _units(row, known):
            if (of := found.setdefault(unit, [])) == []:
                characters += len(unit.text)
            of.append(place)
        if count >= CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield Chunk(list(found), list(found.values()))
            found, count, characters = {}, 0, 0
    if count:
        yield Chunk(list(found), list(found.values()))


def own_text(of: TrainingRow | Problem) -> str:
    """The user's own words; where nobody said which they are, the last message of theirs."""
    if of.text:
        return of.text
    return next((message.text for message in reversed(of.messages) if message.role == "user"), "")


def instructions(problems: Iterable[Problem]) -> set[str]:
    """What problems' prompts are headed by."""
    return {
        message.text
        for problem in problems
        for message in problem.messages
        if message.role in ("system", "developer")
    }


def histories(problems: Sequence[tuple[str, Problem]]) -> Iterator[tuple[str, str, str]]:
    """(key, environment, all that the user said) of problems that end a longer conversation. Turns
    that other conversations have too are examples that all prompts show."""
    earlier = [
        (key, one, _turns(one.messages)) for key, one in problems if len(one.messages) > 2
    ]  # fmt: skip
    seen = Counter(
        turn
        for turns in {one.conversation or key: turns for key, one, turns in earlier}.values()
        for turn in set(turns[:-1])
    )
    several = len({one.conversation or key for key, one in problems}) > 1
    for key, one, turns in earlier:
        own = [turn for turn in turns[:-1] if seen[turn] == 1]
        if own and several:
            yield key, f"{one.environment}, whole", "\n".join([*own, turns[-1]])


def _turns(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages if message.role == "user"]


def _units(row: TrainingRow, known: Set[str]) -> Iterator[Unit]:
    own = own_text(row)
    yield Unit("own", own)
    # A text may be spread over turns, and what an environment calls the user's own may be less.
    turns = _turns(row.messages)
    said = "\n".join(turns)
    if said != own:
        yield Unit("all", said)
    for turn in turns[:-1]:
        yield Unit("turn", turn)
    for message in (*row.messages, row.completion):
        for text in _beside(message):
            if len(text) >= LEAST and text not in known:
                yield Unit("beside", text)


def _beside(message: Message) -> Iterator[str]:
    if message.role != "user":
        yield message.text
    for part in message.parts:
        match part:
            case ToolResult():
                yield part.content
            case ToolCall():
                yield part.arguments
            case Reasoning():
                yield part.text
            case _:
                continue
