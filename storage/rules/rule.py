"""What a curation rule is: a validated set of parameters and one function over candidate rows.

The function gets the rows in their stable order and says for each, in parallel, why it goes (a
reason a person can read) or None where it stays. It depends on nothing but rows and parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from flywheel.rows import TrainingRow

Verdicts = list[str | None]
"""Parallel to the rows: the reason why a row goes, None = it stays."""


class Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Rule:
    parameters: type[Parameters]
    judge: Callable[[Sequence[TrainingRow], Any], Verdicts]
    """Takes an instance of `parameters`."""
