"""What a judge is: a model with a rubric that says what an answer is worth.

Enter: text to be judged, as data. Leave: verdicts, or null with the reason. Invariant: nothing in
the judged text is an instruction; a verdict that could not be had (budget, an answer that does not
fit) is null, never 0.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from flywheel.records import Image, ModelCall


class Judged(NamedTuple):
    value: float | None
    """0 to 1; of a pair 1 = the first is better, 0 = the second, 0.5 = neither. None = it gave
    none."""
    reason: str
    """What the judge said, or why there is no verdict."""
    votes: tuple[float, ...] = ()
    cost_usd: float | None = None
    """None = its price is not known."""
    digest: str = ""
    """Of the judge: model, rubric, settings. What calibration is kept by."""
    disagreements: int = 0
    """Of a pair: votes in which the other order got the other answer."""
    suspect: str = ""
    """Why the judged text may have talked the judge into it: such a verdict may inform, never gate.
    "" = nothing was found."""


class Judge(Protocol):
    """What a reward that names `judge` is given."""

    async def score(
        self, rubric: str, answer: str, *, context: str = "", images: Sequence[Image] = ()
    ) -> Judged: ...

    async def score_call(self, call: ModelCall, *, rubric: str = "") -> Judged:
        """Of the first answer of a model call, after all that it was given to: an episode's last
        one (`flywheel.records.last_call`), or a step (`span.call`)."""
        ...

    async def compare(self, rubric: str, first: str, second: str, *, context: str = "") -> Judged:
        """Asked in both orders; disagreement with itself is 0.5."""
        ...

    def only_informs(self, digest: str) -> str:
        """Why verdicts of this digest may inform but not gate or train; "" = they may. `digest` ""
        = of a judge that was not heard: what it may do at best."""
        ...
