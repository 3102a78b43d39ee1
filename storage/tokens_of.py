"""How long a row is: counted in tokens where they were recorded, else estimated from characters."""

from math import ceil

from flywheel.ids import canonical
from flywheel.records import Message, Text
from flywheel.rows import TrainingRow

CHARACTERS_A_TOKEN = 3.0
"""Under what English needs (about 4), so that an estimate rather drops a row than lets through one
that does not fit."""


def count_tokens(row: TrainingRow) -> tuple[int, int, str]:
    """Tokens of prompt and answer, and " (estimated)" where they had to be."""
    if row.tokens is not None:
        return len(row.tokens.prompt_ids), len(row.tokens.completion_ids), ""
    prompt = sum(_characters(message) for message in row.messages)
    prompt += sum(len(canonical(tool)) for tool in row.tools)
    answer = _characters(row.completion)
    return ceil(prompt / CHARACTERS_A_TOKEN), ceil(answer / CHARACTERS_A_TOKEN), " (estimated)"


def _characters(message: Message) -> int:
    return sum(
        len(part.text) if isinstance(part, Text) else len(canonical(part)) for part in message.parts
    )
