"""Of rows that say nearly the same, one: what differs by a name or a number teaches nothing more.

Compared are word trigrams, by MinHash signatures made while the rows stream past, and embeddings
where the project names an endpoint for them; of labelled rows one a label. The one that is worth
most stays, as with exact duplicates.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from storage.row_texts import own_text
from storage.rules.exact_duplicates import worth_first
from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from flywheel.rows import TrainingRow
    from storage.features import Feature
    from storage.near import Alike


class ByEmbeddings(Parameters):
    url: str
    """OpenAI-compatible, up to and with its /v1."""
    model: str
    key: str | None = None
    """The environment variable that has its key. None = it takes none."""
    threshold: float = Field(0.95, ge=0.8, le=1)
    """Cosine from which two rows are one."""


class NearDuplicates(Parameters):
    threshold: float = Field(0.8, ge=0.3, le=1)
    """Jaccard of the word trigrams from which two rows are one."""
    of: Literal["row", "prompt"] = "row"
    """row: what the user said and what was answered. prompt: what the user said, whatever was
    answered."""
    embeddings: ByEmbeddings | None = None
    """None = words alone are compared."""


def near_duplicates(frame: "pl.DataFrame", parameters: NearDuplicates, _: Known) -> "pl.Series":
    import polars as pl

    from storage.embeddings import cosine
    from storage.near import share_equal

    why = _alike(frame, _column(parameters), parameters.threshold, share_equal)
    if (by := parameters.embeddings) is not None:
        left = frame.filter(why.is_null())
        means = iter(_alike(left, _column(parameters, "signs"), by.threshold, cosine))
        why = pl.Series([next(means) if one is None else one for one in why], dtype=pl.String)
    return why


def _alike(frame: "pl.DataFrame", name: str, threshold: float, alike: "Alike") -> "pl.Series":
    import numpy as np
    import polars as pl

    from storage.near import PLACES, nearly, share_equal

    # Signs of embeddings are near in bits: sixteen of them are equal where vectors are.
    words = alike is share_equal
    bands, means = None if words else (PLACES, 1), "" if words else " in meaning"
    # Answers that are labelled otherwise are there to be told apart.
    compared = worth_first(frame.with_row_index("place").filter(pl.col(name).is_not_null()))
    known = compared.select("place", "label", name)
    why: list[str | None] = [None] * len(frame)
    trace = frame["trace_id"]
    for (_,), some in known.group_by(["label"], maintain_order=True):
        lines = np.empty((len(some), PLACES), np.uint16)
        for at, signature in enumerate(some[name]):
            lines[at] = np.frombuffer(signature, np.uint16)
        found = nearly(lines, threshold, alike, bands)
        places = some["place"].to_numpy()
        gone = np.flatnonzero(found.of >= 0)
        for at in gone.tolist():
            stays = trace[int(places[found.of[at]])]
            why[int(places[at])] = f"about {found.alike[at]:.0%} the same{means} as trace {stays}"
    return pl.Series(why, dtype=pl.String)


def asks(parameters: NearDuplicates) -> "dict[str, Feature]":
    from storage.features import Feature
    from storage.near import signatures

    def signed(rows: "Sequence[TrainingRow]", _: Known) -> list[bytes | None]:
        return signatures([said(row, parameters.of) for row in rows])

    asked = {_column(parameters): Feature("Binary", signed)}
    if (by := parameters.embeddings) is not None:

        def meant(rows: "Sequence[TrainingRow]", known: Known) -> list[bytes | None]:
            from storage.embeddings import Embeddings

            embedded = Embeddings(by.url, by.model, by.key, known.embeddings)
            return embedded.signs([said(row, parameters.of) for row in rows])

        asked[_column(parameters, "signs")] = Feature("Binary", meant)
    return asked


def said(row: "TrainingRow", of: str) -> str:
    """What of a row is compared."""
    prompt = own_text(row)
    if of == "prompt":
        return prompt
    calls = (f"{call.name} {call.arguments}" for call in row.completion.tool_calls)
    return "\n".join((prompt, row.completion.text, *calls))


def _column(parameters: NearDuplicates, kind: str = "signature") -> str:
    return f"{kind}_of_{parameters.of}"


RULE = Rule(NearDuplicates, near_duplicates, asks=asks)
