"""A judge that is not asked: of traces outside of its sample.

Its verdicts are null with the reason and bear the digest of the judge that it stands for, so that
grades of traces inside and outside of the sample weigh the same.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from environments.judges.contract import Judged
from environments.judges.judge import ModelJudge
from flywheel.records import Image, ModelCall


class Unasked(NamedTuple):
    judge: ModelJudge
    reason: str

    async def score(
        self, rubric: str, answer: str, *, context: str = "", images: Sequence[Image] = ()
    ) -> Judged:
        return self._silent("score", rubric)

    async def score_call(self, call: ModelCall, *, rubric: str = "") -> Judged:
        return self._silent("score", rubric)

    async def compare(self, rubric: str, first: str, second: str, *, context: str = "") -> Judged:
        return self._silent("compare", rubric)

    def only_informs(self, digest: str) -> str:
        return self.judge.only_informs(digest)

    def _silent(self, kind: Literal["score", "compare"], rubric: str) -> Judged:
        digest = self.judge.digest_of(kind, rubric)
        return Judged(None, self.reason, cost_usd=0.0, digest=digest)
