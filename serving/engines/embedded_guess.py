"""Guesses at the next tokens: what followed the last time that the same few tokens stood there.

Enter: prompts with what was answered so far. Leave: guesses, none where nothing is known. Answers
that quote their prompt (extraction, edits, tool calls, JSON of a known form) are guessed well.
Prompt lookup decoding (Saxena, 2023), as vLLM's `ngram` method has it; `speculative.json` beside
the weights is that method's own configuration, so that one file serves both engines.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flywheel.errors import CorruptFile
from serving.engines.speculative import FILE

ROOM = 32
"""Tokens of one forward pass, at most: beyond it is the processor that limits, not the memory, and
wrong guesses cost as much as right ones save."""


@dataclass(frozen=True)
class Guessing:
    tokens: int = 4
    """That are guessed at, at most."""
    longest: int = 3
    """Tokens that must stand there again, tried first."""
    shortest: int = 2

    def guesses(
        self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[list[int]] | None:
        """One list a (prompt, answer so far); None = no row has any, or there are too many rows."""
        most = min(self.tokens, ROOM // len(texts) - 1) if texts else 0
        if most < 1:
            return None
        found = [self._guess([*prompt, *answer], most) for prompt, answer in texts]
        return found if any(found) else None

    def _guess(self, ids: list[int], most: int) -> list[int]:
        said = np.asarray(ids)
        for length in range(min(self.longest, len(ids) - 1), self.shortest - 1, -1):
            last = said[-length:]
            windows = np.lib.stride_tricks.sliding_window_view(said[:-1], length)
            places = np.flatnonzero((windows == last).all(1))
            if len(places):
                after = int(places[-1]) + length
                return ids[after : after + most]
        return []


def guessing_of(folder: Path) -> Guessing | None:
    """What stands beside the weights; None = nothing does.

    Raises:
        CorruptFile: it is none, or another method, which this engine has not.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_bytes())
        made = Guessing(
            tokens=int(said["num_speculative_tokens"]),
            longest=int(said.get("prompt_lookup_max", Guessing.longest)),
            shortest=int(said.get("prompt_lookup_min", Guessing.shortest)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{path} cannot be read: {error!r}") from error
    if said.get("method") != "ngram" or not (
        1 <= made.tokens <= 16 and 1 <= made.shortest <= made.longest <= 16
    ):
        raise CorruptFile(f"{path}: only the method ngram, with 1 to 16 tokens, is done here")
    return made
