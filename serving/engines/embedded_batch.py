"""Rows that are decoded together: prefilling prompts, and steps of one token for every row.

Prefilling is a generator that yields between forward passes, so that whoever drives it can let
others run in between. Enter: rows with prompts. Leave: each row's tokens, through its `deliver`.
What comes out of a batch depends on its rows and their order alone.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from serving.engines.embedded_attention import decoding, prefilling
from serving.engines.embedded_cache import Segment, Slots
from serving.engines.embedded_choose import Choosing, Drawn, draw
from serving.engines.embedded_guess import Guessing
from serving.engines.embedded_model import Model

CHUNK = 512
"""Tokens of one forward pass while prefilling, at most (padding counted)."""


@dataclass(eq=False)
class Row:
    """One answer in the making."""

    adapter: str
    prompt: tuple[int, ...]
    choosing: Choosing
    generator: torch.Generator
    max_tokens: int
    stop_ids: frozenset[int]
    deliver: Callable[[Drawn | None, str | None], None]
    """Called with each token and, with the last one, the finish reason; (None, reason) = failed."""
    seed: int | None = None
    choice: int = 0
    steady: bool = False
    """Its bits depend on nothing but itself."""
    halts: Callable[[int], bool] | None = None
    """Told of each token; True = a stop string is complete."""
    tokens: list[int] = field(default_factory=list)
    abandoned: bool = False
    """Nobody waits for it any more. May be set from any thread."""
    finished: bool = False

    @property
    def order(self) -> tuple[object, ...]:
        """Where it stands in a gang: by what it asks for, never by when it came."""
        how = self.choosing
        seed = -1 if self.seed is None else self.seed
        asked = (how.temperature, how.top_p, how.top_k, self.max_tokens)
        return (len(self.prompt), self.prompt, seed, self.choice, asked)

    def take(self, drawn: Drawn) -> bool:
        """Appends a token, tells who waits, and says whether the row is finished."""
        self.finished = self._ended_by(drawn)
        return self.finished

    def _ended_by(self, drawn: Drawn) -> bool:
        self.tokens.append(drawn.id)
        finish = None
        if drawn.logprob != drawn.logprob:
            self.deliver(None, "the model's output is not a number")
            return True
        if drawn.id in self.stop_ids or (self.halts is not None and self.halts(drawn.id)):
            finish = "stop"
        elif len(self.tokens) >= self.max_tokens:
            finish = "length"
        self.deliver(drawn, finish)
        return finish is not None


@dataclass(eq=False)
class Group:
    """Rows that share a segment, parallel to the rows of their slots."""

    segment: Segment | None
    slots: Slots
    rows: list[Row]

    @property
    def offset(self) -> int:
        return self.segment.length if self.segment else 0


def prefill(
    model: Model, adapter: str, segment: Segment | None, prompts: Sequence[tuple[int, ...]]
) -> Generator[None, None, tuple[Slots, torch.Tensor]]:
    """Slots filled with `prompts` (what follows the segment), and the hidden state that each one's
    next token comes from, [prompts, width]."""
    slots, lasts = Slots(model.shape), []
    for some in _portions(prompts):
        filled, last = yield from _prefill_portion(model, adapter, segment, some)
        slots.append(filled, range(len(some)))
        lasts.append(last)
    return slots, torch.cat(lasts)


def _portions(prompts: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Neighbours whose padded size fits one chunk; a long prompt stands alone."""
    some: list[tuple[int, ...]] = []
    for prompt in prompts:
        widest = max(len(prompt), *(len(each) for each in some)) if some else len(prompt)
        if some and widest * (len(some) + 1) > CHUNK:
            yield some
            some = []
        some.append(prompt)
    yield some


def _prefill_portion(
    model: Model, adapter: str, segment: Segment | None, prompts: list[tuple[int, ...]]
) -> Generator[None, None, tuple[Slots, torch.Tensor]]:
    widest, offset = max(len(prompt) for prompt in prompts), segment.length if segment else 0
    ids = torch.tensor([[*prompt, *[0] * (widest - len(prompt))] for prompt in prompts])
    slots, last = Slots(model.shape), None
    slots.add([widest] * len(prompts))
    for start in range(0, widest, CHUNK):
        chunk = ids[:, start : start + CHUNK]
        width = chunk.shape[1]
        positions = torch.arange(offset + start, offset + start + width).expand_as(chunk)
        hidden = model.hidden(adapter, chunk, positions, [prefilling(segment, slots, start, width)])
        if last is None:
            last = torch.empty(len(prompts), hidden.shape[-1])
        for row, prompt in enumerate(prompts):
            if start < len(prompt) <= start + width:
                last[row] = hidden[row, len(prompt) - 1 - start]
        yield
    assert last is not None
    slots.lengths = [len(prompt) for prompt in prompts]
    return slots, last


def compute_segment(
    model: Model, adapter: str, ids: tuple[int, ...]
) -> Generator[None, None, Segment]:
    """A prefix computed alone and from its first token, so that its bits are its own."""
    slots, _ = yield from prefill(model, adapter, None, [ids])
    return slots.segment(ids)


def start_rows(
    model: Model, adapter: str, segment: Segment | None, rows: Sequence[Row]
) -> Generator[None, None, Group]:
    """Prefills each different prompt once, gives every row its copy and its first token. Rows that
    are finished by it are not in the group."""
    offset = segment.length if segment else 0
    whole = [(*row.prompt, *row.tokens)[offset:] for row in rows]
    unique = list(dict.fromkeys(whole))
    filled, last = yield from prefill(model, adapter, segment, unique)
    group = Group(segment, Slots(model.shape), list(rows))
    where = {prompt: index for index, prompt in enumerate(unique)}
    picks = [where[prompt] for prompt in whole]
    logits = model.logits(last)[torch.tensor(picks)]
    drawn = draw(logits, [row.choosing for row in rows], [row.generator for row in rows])
    unfinished = [i for i, row in enumerate(rows) if not row.take(drawn[i])]
    if unfinished:
        group.slots.append(filled, [picks[index] for index in unfinished])
    group.rows = [rows[index] for index in unfinished]
    return group


def step(
    model: Model, adapter: str, groups: Sequence[Group], guessing: Guessing | None = None
) -> None:
    """A token for every row of `groups`, none of which is empty, and more where guesses at them
    come true; finished rows leave.

    `guessing`: how the next tokens are guessed; None = they are not.
    """
    rows = [row for group in groups for row in group.rows]
    guesses = guessing.guesses([(row.prompt, row.tokens) for row in rows]) if guessing else None
    if guesses:
        return _guessed_step(model, adapter, groups, guesses)
    for group in groups:
        group.slots.reserve(len(group.rows), max(group.slots.lengths) + 1)
    ids = torch.tensor([[row.tokens[-1]] for row in rows])
    positions = torch.tensor(
        [[group.offset + length] for group in groups for length in group.slots.lengths]
    )
    parts = [decoding(group.segment, group.slots) for group in groups]
    logits = model.logits(model.hidden(adapter, ids, positions, parts)[:, -1])
    drawn = iter(draw(logits, [row.choosing for row in rows], [row.generator for row in rows]))
    for group in groups:
        group.slots.lengths = [length + 1 for length in group.slots.lengths]
        drop(group, lambda row: row.take(next(drawn)))
    return None


def _guessed_step(
    model: Model, adapter: str, groups: Sequence[Group], guesses: Sequence[Sequence[int]]
) -> None:
    """One forward pass over each row's last token and the guesses after it, parallel to the rows.

    A token is drawn after the last one as ever; while it is the one that was guessed, the next is
    drawn from what the pass says of the place after it. So tokens come from the model's own
    distribution, drawn by the same random numbers as without guesses (Leviathan et al., ICML 2023,
    with a draft that is certain of its guess). Keys and values of wrong guesses are written over.
    """
    rows = [row for group in groups for row in group.rows]
    new = 1 + max(map(len, guesses))
    for group in groups:
        group.slots.reserve(len(group.rows), max(group.slots.lengths) + new)
    tokens = [
        [row.tokens[-1], *guess, *[0] * (new - 1 - len(guess))]
        for row, guess in zip(rows, guesses, strict=True)
    ]
    lengths = [group.offset + length for group in groups for length in group.slots.lengths]
    positions = torch.tensor(lengths)[:, None] + torch.arange(new)
    parts = [decoding(group.segment, group.slots, new=new) for group in groups]
    hidden = model.hidden(adapter, torch.tensor(tokens), positions, parts)
    taken, going = [0] * len(rows), list(range(len(rows)))
    for place in range(new):
        logits = model.logits(hidden[going, place])
        drawn = draw(
            logits, [rows[at].choosing for at in going], [rows[at].generator for at in going]
        )
        going = [
            at for at, one in zip(going, drawn, strict=True)
            if _taken(rows[at], one, taken, at) and place < len(guesses[at])
            and one.id == guesses[at][place]
        ]  # fmt: skip
        if not going:
            break
    grown = iter(taken)
    for group in groups:
        group.slots.lengths = [length + next(grown) for length in group.slots.lengths]
        drop(group, lambda row: row.finished)


def _taken(row: Row, drawn: Drawn, taken: list[int], at: int) -> bool:
    """Whether the row goes on after this token."""
    taken[at] += 1
    return not row.take(drawn)


def drop(group: Group, leaves: Callable[[Row], bool]) -> None:
    """Takes out the rows for which `leaves`, asked once a row in order, is true."""
    kept = [index for index, row in enumerate(group.rows) if not leaves(row)]
    if len(kept) < len(group.rows):
        group.slots.keep(kept)
        group.slots.shrink()
        group.rows = [group.rows[index] for index in kept]
