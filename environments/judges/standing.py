"""What a judge's grades may do: gate and train, or only inform.

Enter: calibrations, and the project's bar. Leave: by the judge's digest, why its grades may only
inform, and such grades without weight. Invariant: a judge that was not shown to agree with people,
with this model, these settings and this rubric, moves no score.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from flywheel.judge_section import JudgeSection
from flywheel.lineage import Calibration
from flywheel.records import Grade

if TYPE_CHECKING:
    from environments.judges.contract import Judge

NOT_CALIBRATED = (
    "this judge's agreement with people is not known: run `flywheel judge calibrate`, after "
    "reviewing some answers"
)
ANOTHER = (
    "only another model, rubric or settings were compared with people: run `flywheel judge "
    "calibrate` again"
)
INFORMS = "informs only: "
"""Begins what is said of a grade that lost its weight."""
MOST_MISSING = 0.2
"""Share of reviewed answers without a verdict from which agreement on the others says little."""


def standings(calibrations: Iterable[Calibration], section: JudgeSection) -> dict[str, str]:
    """By digest of the judge, as its latest calibration says: why it informs only; "" = it gates.

    Calibrations may be of any project and any judge: what was measured is named by the digest.
    """
    latest: dict[str, Calibration] = {}
    for one in sorted(calibrations, key=lambda one: (one.at, one.id)):
        latest[one.judge] = one
    return {judge: short_of(one, section) for judge, one in latest.items()}


def short_of(calibration: Calibration, section: JudgeSection) -> str:
    """Why a calibration does not let its judge gate; "" = it does."""
    reviewed = calibration.n + calibration.missing
    if calibration.n < section.least_reviews:
        return f"it was compared with {calibration.n} reviews, {section.least_reviews} are wanted"
    if calibration.missing > MOST_MISSING * reviewed:
        return f"it gave no verdict on {calibration.missing} of {reviewed} reviewed answers"
    if calibration.kappa is None:
        return calibration.reason or "its agreement with people could not be measured"
    if calibration.kappa < section.bar:
        return f"kappa with people is {calibration.kappa:.2f}, the bar is {section.bar:g}"
    return ""


def looked_up(standings: Mapping[str, str], digest: str) -> str:
    """`digest` "" = of a judge that said nothing: what it may do at best."""
    if not digest:
        return "" if "" in standings.values() else NOT_CALIBRATED
    return standings.get(digest, ANOTHER if standings else NOT_CALIBRATED)


def only_informs(judge: "Judge | None", digest: str) -> str:
    """Why verdicts of `digest` may inform but not gate; "" = they may gate."""
    if judge is None:
        return ""
    return judge.only_informs(digest)


def judged(grade: Grade, judge: "Judge | None", digest: str) -> Grade:
    """A grade that a judge had a part in: the one place where such grades lose their weight."""
    grader = f"{grade.grader}:{digest}" if digest else grade.grader
    why = only_informs(judge, digest)
    if not why:
        return msgspec.structs.replace(grade, kind="judge", grader=grader)
    note = INFORMS + why
    reason = f"{grade.reason} ({note})" if grade.reason else note
    return msgspec.structs.replace(grade, kind="judge", grader=grader, weight=0.0, reason=reason)
