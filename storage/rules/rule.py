"""What a curation rule is: a validated set of parameters and one function over narrow columns.

The function gets candidate rows as a frame (`storage.narrow.NARROW`, and the features it needs) in
their stable order (row_id, trace_id, span_id) and says for each, in parallel, why it goes (a reason
a person can read) or null where it stays. It depends on frame, parameters and `Known` alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import polars as pl

    from storage.features import Feature


class Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Known:
    """What rules may know beside the rows: all of it as of the turn's snapshot."""

    project: str = ""
    deployments: frozenset[str] = frozenset()
    """Names of its own deployments, under which its models answered."""
    base: str | None = None
    """The model that these were trained from. None = not known."""
    pass_rates: Mapping[str, float] = field(default_factory=dict)
    """The champion's, by problem; a problem that it was never asked is absent."""
    tries: Mapping[str, int] = field(default_factory=dict)
    """How many graded answers of the champion each of these is of; absent = one."""
    clusters: Mapping[str, str] = field(default_factory=dict)
    """Problem -> the cluster of traffic that it was mined in; absent = in none."""
    reviews: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Trace -> how many people gave their verdict on it, and the mean of these: 1 = accepted."""
    now: int | None = None
    """The snapshot's time in ns since the epoch, never the clock's. None = not known: no row is
    old."""
    earlier: tuple[str, ...] = ()
    """Ids of the project's earlier accepted datasets, the last one first."""
    embeddings: Path | None = None
    """The file of what endpoints said of texts before: it saves asking again."""


def listed(value: object) -> object:
    """One name stands for a list of one, where people write parameters."""
    return (value,) if isinstance(value, str) else value


@dataclass(frozen=True)
class Rule:
    parameters: type[Parameters]
    judge: Callable[["pl.DataFrame", Any, Known], "pl.Series"]
    """Takes an instance of `parameters`; gives strings parallel to the frame, null = it stays."""
    needs: tuple[str, ...] = ()
    """Keys of `storage.features.FEATURES` that must be columns of the frame."""
    asks: "Callable[[Any], Mapping[str, Feature]] | None" = None
    """Further columns that depend on its parameters, of which it takes an instance."""
    weigh: Callable[["pl.DataFrame", Any, Known], "pl.Series"] | None = None
    """Gives the weights of the rows that stay, parallel to them. None = they keep their own."""
