"""A judge as one reward hears it: what it said is kept, whatever the reward makes of it.

Enter: a judge, and what the reward's method gave or raised. Leaves: its outcomes, with the judge's
digest. Invariants: a reward cannot lose that its judge gave no verdict, or a suspect one: the first
is null with the judge's reason, the second is null where it would have gated.
"""

from collections.abc import Sequence

from environments.board import Outcome
from environments.judges.contract import Judge, Judged
from environments.judges.standing import only_informs
from flywheel.ids import digest
from flywheel.records import Image, ModelCall


class Listening:
    """One call's view of a judge."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.heard: list[Judged] = []

    async def score(
        self, rubric: str, answer: str, *, context: str = "", images: Sequence[Image] = ()
    ) -> Judged:
        said = await self._judge.score(rubric, answer, context=context, images=images)
        self.heard.append(said)
        return said

    async def score_call(self, call: ModelCall, *, rubric: str = "") -> Judged:
        said = await self._judge.score_call(call, rubric=rubric)
        self.heard.append(said)
        return said

    async def compare(self, rubric: str, first: str, second: str, *, context: str = "") -> Judged:
        said = await self._judge.compare(rubric, first, second, context=context)
        self.heard.append(said)
        return said

    def only_informs(self, digest: str) -> str:
        return only_informs(self._judge, digest)

    @property
    def digest(self) -> str:
        """Of all that was heard; "" = nothing was."""
        seen = sorted({said.digest for said in self.heard})
        return seen[0] if len(seen) == 1 else digest(seen) if seen else ""

    def marked(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of the call, as what was heard lets them be."""
        if not self.heard:
            return list(outcomes)
        return [self._marked(outcome) for outcome in outcomes]

    def _marked(self, outcome: Outcome) -> Outcome:
        value, reason = outcome.value, outcome.reason
        silent = [said.reason for said in self.heard if said.value is None]
        if value is None and silent:
            reason = silent[0]
        elif reason is None:
            reason = "; ".join(said.reason for said in self.heard[:3] if said.reason) or None
        suspect = next((said.suspect for said in self.heard if said.suspect), "")
        if suspect and value is not None:
            said = f"suspect, {suspect}; the judge said {value:g}"
            reason = f"{said}: {reason}" if reason else said
            value = value if only_informs(self._judge, self.digest) else None
        return Outcome(value, reason, self.digest)
