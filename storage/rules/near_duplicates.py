"""Of rows that say nearly the same, one: what differs by a name or a number teaches nothing more.

Compared are word trigrams, by MinHash signatures made while the rows stream past; of labelled rows
one a label. The one that is worth most stays, as with exact duplicates.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from storage.rules.exact_duplicates import worth_first
from storage.rules.rule import Known, Parameters, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from flywheel.rows import TrainingRow
    from storage.features import Feature


class NearDuplicates(Parameters):
    threshold: float = Field(0.8, ge=0.3, le=1)
    """Jaccard of the word trigrams from which two rows are one."""
    of: Literal["row", "prompt"] = "row"
    """row: what the user said and what was answered. prompt: what the user said, whatever was
    answered."""


def near_duplicates(frame: "pl.DataFrame", parameters: NearDuplicates, _: Known) -> "pl.Series":
    import numpy as np
    import polars as pl

    from storage.near import PLACES, nearly

    name = _column(parameters)
    # Answers that are labelled otherwise are there to be told apart.
    compared = worth_first(frame.with_row_index("place").filter(pl.col(name).is_not_null()))
    known = compared.select("place", "label", name)
    why: list[str | None] = [None] * len(frame)
    trace = frame["trace_id"]
    for (_,), some in known.group_by(["label"], maintain_order=True):
        lines = np.empty((len(some), PLACES), np.uint16)
        for at, signature in enumerate(some[name]):
            lines[at] = np.frombuffer(signature, np.uint16)
        found = nearly(lines, parameters.threshold)
        places = some["place"].to_numpy()
        gone = np.flatnonzero(found.of >= 0)
        for at in gone.tolist():
            stays = trace[int(places[found.of[at]])]
            why[int(places[at])] = f"about {found.alike[at]:.0%} the same as trace {stays}"
    return pl.Series(why, dtype=pl.String)


def asks(parameters: NearDuplicates) -> "dict[str, Feature]":
    from storage.features import Feature
    from storage.near import signatures

    def signed(rows: "Sequence[TrainingRow]", _: Known) -> list[bytes | None]:
        return signatures([said(row, parameters.of) for row in rows])

    return {_column(parameters): Feature("Binary", signed)}


def said(row: "TrainingRow", of: str) -> str:
    """What of a row is compared."""
    prompt = row.text or next(
        (one.text for one in reversed(row.messages) if one.role == "user"), ""
    )
    if of == "prompt":
        return prompt
    calls = (f"{call.name} {call.arguments}" for call in row.completion.tool_calls)
    return "\n".join((prompt, row.completion.text, *calls))


def _column(parameters: NearDuplicates) -> str:
    return f"signature_of_{parameters.of}"


RULE = Rule(NearDuplicates, near_duplicates, asks=asks)
