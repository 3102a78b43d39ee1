"""Which language a row is in, by its user's own words and its answer.

Identified by py3langid's naive Bayes model, which comes with the package; it is loaded when the
first row is looked at. What it is not sure of has no language: short texts, code, numbers.
"""

from functools import cache
from typing import Any

from flywheel.rows import TrainingRow
from storage.row_texts import own_text

SURE = 0.5
"""Probability from which a language counts as told."""
LONGEST = 600
"""Characters that are looked at, of each of the two."""


def language_of(row: TrainingRow) -> str | None:
    """ISO 639-1; None = it cannot be told."""
    text = f"{own_text(row)[:LONGEST]}\n{row.completion.text[:LONGEST]}".strip()
    if not text:
        return None
    language, probability = _identifier().classify(text)
    return language if probability >= SURE else None


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
