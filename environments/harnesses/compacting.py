"""As the tool loop; the history is summarised by the model whenever it passes a budget.

Enter: a problem, however long. Leave: a trace that forks at each summary: the summary's calls come
from an agent span under the last call, and the next call comes from the last of them. Invariants:
what was asked stays word by word where it is short; a tool's answer is never parted from its call.
"""

import time
from collections.abc import Sequence

from environments.endpoint import CallFailed
from environments.harnesses.asking import ASIDE, Said, ask, how, told
from environments.harnesses.contract import Compacting, Episode
from environments.harnesses.long_input import size_of, split, taken_apart, transcript
from environments.harnesses.toolbox import Toolbox, shortened
from flywheel.records import Message, Span

_SMALLEST = 64
"""Characters of a piece that is not halved further, though the engine refuses it."""
_FOLD = """You keep the memory of work that is too long to be read at once. What is to be done:
{question}

{memory}What happened next:
{piece}

Write the memory anew, whole and short: what is known, what was done, what is still to do. Write \
nothing else."""
_SO_FAR = "The memory so far:\n{memory}\n\n"
_GO_ON = "{question}\n\n[What came before, summarised]\n{memory}"


class Compaction:
    def __init__(self, config: Compacting) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        box = Toolbox(episode, episode.environment.tools(episode))
        messages = list(episode.problem.messages)
        while True:
            said, messages = await self._said(episode, messages, box)
            messages.append(said.message)
            if not said.calls:
                episode.ended = how(said)
                return
            messages += await box.answer(said)

    async def _said(
        self, episode: Episode, messages: list[Message], box: Toolbox
    ) -> tuple[Said, list[Message]]:
        """The next answer, and the history that it answers: compacted where it was too long."""
        offered = box.schemas or episode.problem.tools
        parents: tuple[str, ...] = ()
        compacted = size_of(messages) > self.config.at
        if compacted:
            messages, parents = await self._compacted(episode, messages)
        try:
            said = await ask(episode, messages, tools=offered, parents=parents)
        except CallFailed as error:
            if not error.too_long or compacted:
                raise
            messages, parents = await self._compacted(episode, messages)
            said = await ask(episode, messages, tools=offered, parents=parents)
        return said, messages

    async def _compacted(
        self, episode: Episode, messages: Sequence[Message]
    ) -> tuple[list[Message], tuple[str, ...]]:
        """A shorter history, and the call that it comes from."""
        number = episode.notes["compacted"] = episode.notes.get("compacted", 0) + 1
        name, start = f"compact-{number}", time.time_ns()
        answered = [call.id for call in episode.calls if call.error is None]
        before = [one for one in messages if one.role in ("system", "developer")]
        rest = [one for one in messages if one.role not in ("system", "developer")]
        kept = self._kept(rest)
        old = rest[: len(rest) - len(kept)]
        asked = _asked(episode, self.config.at // 4)
        try:
            memory, came = await self._folded(episode, before, old, asked, name)
        finally:
            span = Span(id=name, kind="agent", name="compact", parents=tuple(answered[-1:]),
                        start=start, end=time.time_ns(), attributes=ASIDE)  # fmt: skip
            episode.spans.append(span)
        return [*before, told(_GO_ON.format(question=asked, memory=memory)), *kept], came

    def _kept(self, rest: Sequence[Message]) -> list[Message]:
        """The latest messages that stay: whole exchanges, and not too long."""
        kept: list[Message] = list(rest[len(rest) - min(self.config.keep, len(rest)) :])
        while kept and (kept[0].role == "tool" or size_of(kept) > self.config.at // 2):
            kept.pop(0)
        return kept

    async def _folded(
        self,
        episode: Episode,
        before: Sequence[Message],
        old: Sequence[Message],
        asked: str,
        span: str,
    ) -> tuple[str, tuple[str, ...]]:
        """A memory of `old`, and the call that it comes from: made piece by piece, a piece that the
        engine refuses halved."""
        memory, came = "", tuple[str, ...]()
        pieces = split(transcript(old), self.config.at // 2)
        while pieces:
            piece = pieces.pop(0)
            so_far = _SO_FAR.format(memory=memory) if memory else ""
            prompt = _FOLD.format(question=asked, memory=so_far, piece=piece)
            try:
                said = await ask(episode, [*before, told(prompt)], parents=(span,))
            except CallFailed as error:
                if not error.too_long or len(piece) <= _SMALLEST:
                    raise
                pieces[:0] = split(piece, -(-len(piece) // 2))
                continue
            memory, came = shortened(said.message.text, self.config.at // 4), (said.span,)
        return memory, came


def _asked(episode: Episode, limit: int) -> str:
    """What the episode is about: the first words of the user, or where these are long, what they
    ask at their end."""
    first = next((one for one in episode.problem.messages if one.role == "user"), None)
    if first is not None and size_of([first]) <= limit:
        return first.text
    return shortened(taken_apart(episode.problem).question, limit)
