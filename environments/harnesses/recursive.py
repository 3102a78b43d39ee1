"""The model calls itself on parts of an input longer than its window.

Enter: a problem with a long text. Leave: its answer from notes that it took of each part; each part
is a sub-agent, a branch of the trace's graph under the level that it was split at. Notes that are
still too long are read in the same way, one level deeper, and no deeper than the configuration
says.
"""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from environments.endpoint import CallFailed
from environments.harnesses.asking import ASIDE, Ended, ask, how, told
from environments.harnesses.contract import Episode, Recursive
from environments.harnesses.long_input import Long, split, taken_apart
from environments.harnesses.toolbox import shortened
from flywheel.records import Span

AT_ONCE = 8
_SMALLEST = 64
"""Characters of a part that is not split further, though the engine refuses it."""
_PART = """You read part {number} of {count} of a long text. Write down, in few words, whatever of \
it helps with this:
{question}

If nothing in this part helps, write "nothing".

--- part {number} of {count} ---
{part}"""
_WHOLE = """These notes were taken, part by part, of a text too long to be read at once:

{notes}

With them, do this:
{question}"""
_NO_QUESTION = "say what the text says"


class Recursion:
    def __init__(self, config: Recursive) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        long, problem = taken_apart(episode.problem), episode.problem
        if len(long.text) <= self.config.part:
            try:
                episode.ended = how(await ask(episode, problem.messages, tools=problem.tools))
                return
            except CallFailed as error:
                if not error.too_long:
                    raise
        notes, level = await self._notes(episode, long, long.text, 1, ())
        asked = _WHOLE.format(notes=notes, question=long.question or _NO_QUESTION)
        episode.ended = how(await ask(episode, [*long.before, told(asked)], parents=(level,)))

    async def _notes(
        self, episode: Episode, long: Long, text: str, depth: int, parents: Sequence[str]
    ) -> tuple[str, str]:
        """Notes no longer than a part, and the span of the level that they come from."""
        level = f"level-{depth}"
        start, parts = time.time_ns(), split(text, self.config.part)
        needed = len(parts) + 1
        if needed > episode.budget.turns - episode.turns:
            episode.notes["turns_needed"] = episode.turns + needed
            raise Ended("budget: turns")  # calls that cannot lead to an answer are not made
        turn = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> str:
            async with turn:
                place = (number + 1, len(parts))
                return await _read(
                    episode, long, parts[number], place, level, f"part-{depth}-{number}"
                )

        try:
            async with asyncio.TaskGroup() as together:
                running = [together.create_task(read(number)) for number in range(len(parts))]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            episode.spans.append(_agent(level, f"{len(parts)} parts", parents, start))
        notes = "\n".join(task.result() for task in running)
        if len(notes) > self.config.part and depth < self.config.depth:
            return await self._notes(episode, long, notes, depth + 1, (level,))
        return shortened(notes, self.config.part), level


async def _read(
    episode: Episode, long: Long, part: str, place: tuple[int, int], parent: str, name: str
) -> str:
    """One sub-agent's notes; a part that the engine has no room for is halved."""
    start = time.time_ns()
    number, count = place
    prompt = _PART.format(
        number=number, count=count, question=long.question or _NO_QUESTION, part=part
    )
    try:
        said = await ask(episode, [*long.before, told(prompt)], parents=(name,))
        return said.message.text
    except CallFailed as error:
        if not error.too_long or len(part) <= _SMALLEST:
            raise
        halves = split(part, -(-len(part) // 2))
        return "\n".join(
            [
                await _read(episode, long, half, place, name, f"{name}-{which}")
                for which, half in enumerate(halves)
            ]
        )
    finally:
        agent = _agent(name, f"part {number} of {count}", (parent,), start)
        episode.spans.append(msgspec.structs.replace(agent, attributes=ASIDE))


def _agent(span: str, name: str, parents: Sequence[str], start: int) -> Span:
    end = time.time_ns()
    return Span(id=span, kind="agent", name=name, parents=tuple(parents), start=start, end=end)
