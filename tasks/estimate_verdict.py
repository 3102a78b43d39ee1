"""What a replay and logged choices say together: better, worse, not worse, or "cannot tell".

Enter rows of a replay and an off-policy estimate; leaves one plain object for scripts, pages and
the ledger. Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flywheel.lineage import Outcome, SliceResult
from flywheel.project import GateSection
from flywheel.records import Record

MIN_COMPARED = 30
"""Conversations graded on both sides that a replay needs."""
BETTER, WORSE, NOT_WORSE, UNCLEAR = "better", "worse", "not worse", "cannot tell"
OUTCOMES: dict[str, Outcome] = {
    BETTER: "passed", NOT_WORSE: "passed", WORSE: "refused", UNCLEAR: "inconclusive",
}  # fmt: skip
"""As the ledger has it."""


class Estimates(Record, frozen=True, kw_only=True, omit_defaults=False):
    candidate: str
    champion: str
    verdict: str
    reason: str
    replay: dict[str, Any]
    logged: dict[str, Any]


def estimates_of(
    *, candidate: str, champion: str, rows: Sequence[Mapping[str, Any]],
    looked_at: Mapping[str, int], logged: Mapping[str, Any], gate: GateSection,
    tokens: tuple[float | None, float | None],
) -> Estimates:  # fmt: skip
    replay = replay_said(rows, gate)
    replay |= {"looked_at": dict(looked_at), "served_tokens": tokens[0],
               "candidate_tokens": tokens[1]}  # fmt: skip
    verdict, why = judge(logged, gate.margin)
    drawn = {**logged, "verdict": verdict, "said": why}
    both = {replay["verdict"], verdict}
    overall = next((one for one in (WORSE, BETTER, NOT_WORSE) if one in both), UNCLEAR)
    if {BETTER, WORSE} <= both:
        overall = UNCLEAR
    return Estimates(
        candidate=candidate,
        champion=champion,
        verdict=overall,
        reason=f"replay: {replay['said']}; logged choices: {why}",
        replay=replay,
        logged=drawn,
    )


def replay_said(rows: Sequence[Mapping[str, Any]], gate: GateSection) -> dict[str, Any]:
    """Paired by conversation. A conversation that left the record, or that either side has no grade
    of, is counted and left out of the means; too many of them, and nothing is concluded."""
    from environments.statistics import MAX_UNGRADED, compare

    found = compare(
        {one["trace"]: [one["served"]] for one in rows},
        {one["trace"]: [one["candidate"]] for one in rows},
        {one["trace"]: one["slice"] for one in rows},
        confidence=gate.confidence,
        slice_min_problems=gate.slice_min_problems,
    )
    ended = Counter(one["ended"] for one in rows)
    overall, asked = found.overall, len(rows)
    lost = asked - overall.problems
    reason = None
    if overall.problems < MIN_COMPARED:
        reason = (
            f"cannot tell: {overall.problems} conversations compared, {MIN_COMPARED} are needed"
        )
    elif lost > MAX_UNGRADED * asked:
        reason = (
            f"cannot tell: {lost} of {asked} conversations have no grade "
            f"({ended['diverged']} diverged from the record, {ended['failed']} failed)"
        )
    verdict, said = judge({**msgspec.to_builtins(overall), "reason": reason}, gate.margin)
    return {
        "asked": asked,
        "compared": overall.problems,
        "diverged": ended["diverged"],
        "failed": ended["failed"],
        "served_by": dict(Counter(str(one["by"]) for one in rows)),
        "overall": _plain(overall),
        "slices": [_plain(one) for one in found.slices],
        "verdict": verdict,
        "said": said,
    }


def judge(found: Mapping[str, Any], margin: float) -> tuple[str, str]:
    """The verdict of one difference with its interval, and the same in words."""
    low, high, difference = (found.get(name) for name in ("low", "high", "difference"))
    if found.get("reason") or low is None or high is None or difference is None:
        return UNCLEAR, str(found.get("reason") or "cannot tell: the difference is not known")
    told = f"{difference:+.3f} ({low:+.3f} to {high:+.3f})"
    if low > 0:
        return BETTER, f"better, {told}"
    if high < 0:
        return WORSE, f"worse, {told}"
    if low > -margin:
        return NOT_WORSE, f"not worse by more than {margin:g}, {told}"
    return UNCLEAR, f"cannot tell: {told}"


def _plain(result: SliceResult) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(result)
    return made
