"""The gate of a variant: not worse than the champion by the margin, and cheaper in seconds a token.

Enters a turn whose champion and variant stand side by side in one engine; leaves how long each
takes for a token, measured one request at a time and in turns, and the verdict. What it costs is
the machine's time: both sides write about as many tokens.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.ids import seed_of
from flywheel.lineage import Evaluation
from flywheel.progress import report
from flywheel.project import GateSection
from tasks.evaluate import answer_both
from tasks.gates import Verdict, record
from tasks.judging import judged
from tasks.sample import answering
from tasks.serving_gate import prompts_of
from tasks.step import step
from tasks.tracking import begin_trial, log_evaluation
from tasks.turns import Turn, engine, home, note, project_of

if TYPE_CHECKING:
    from serving.engines.client import EngineClient

PROMPTS = 24
"""That are timed on both sides."""


def variant_verdict(turn: Turn, ids: list[str], challenger: dict[str, Any], by: str) -> Verdict:
    """Both answer the held-out problems and are timed; the verdict is in the ledger."""
    mlflow_run_id = begin_trial(turn, challenger)
    answer_both(turn, ids, challenger)
    speed = time_both(turn, ids[:PROMPTS], challenger)
    said = rule_on_variant(turn, ids, challenger, speed, mlflow_run_id)
    record(turn, said, by=by, evaluation_id=said["evaluation"], deployment=challenger["name"])
    note(turn, "evaluation", said)
    return said


@step(minutes=60)
def time_both(turn: Turn, ids: list[str], challenger: dict[str, Any]) -> dict[str, Any]:
    """Seconds a token, the two sides in turns so that what else the machine does meets both."""
    from serving.routing import served_as
    from storage.queries import problems

    client = engine()
    sides = [served_as(answering(turn, one)) for one in (None, challenger)]
    known = {one.id: one for one in problems(home(), ids=ids)}
    asked = prompts_of([known[one] for one in ids if one in known], Path(turn.start.base_model))
    spent: list[list[tuple[float, int]]] = [[], []]
    for number, prompt in enumerate(asked):
        report("timing", number, len(asked))
        for side in (0, 1) if number % 2 else (1, 0):
            spent[side].append(_timed(turn, client, sides[side], prompt.ids))
    report("timing", len(asked), len(asked))
    return speed_of(spent[0], spent[1], project_of(turn).gate.confidence)


def _timed(turn: Turn, client: "EngineClient", model: str, ids: Sequence[int]) -> tuple[float, int]:
    rollouts = project_of(turn).rollouts
    begun = time.perf_counter()
    (answer,) = client.generate(
        model, ids, max_tokens=rollouts.max_tokens, temperature=rollouts.temperature,
        seed=seed_of(turn.run_id, list(ids)),
    )  # fmt: skip
    return time.perf_counter() - begun, len(answer.token_ids)


def speed_of(
    champion: Sequence[tuple[float, int]], candidate: Sequence[tuple[float, int]], confidence: float
) -> dict[str, Any]:
    """(seconds, tokens) of the same prompts on both sides -> seconds a token, and the share saved
    with its interval, by the mean logarithm of the prompts' ratios."""
    from environments.statistics import bootstrap_mean

    ratios = [
        math.log((theirs / more) / (ours / some))
        for (ours, some), (theirs, more) in zip(champion, candidate, strict=True)
        if ours > 0 and theirs > 0 and some and more
    ]
    told: dict[str, Any] = {
        "prompts": len(ratios), "champion_s_token": _each(champion),
        "candidate_s_token": _each(candidate), "saved": None, "low": None, "high": None,
    }  # fmt: skip
    if len(ratios) < 2:
        return told
    low, high = bootstrap_mean(ratios, confidence, seed=0)
    saved = 1 - math.exp(math.fsum(ratios) / len(ratios))
    return {**told, "saved": saved, "low": 1 - math.exp(high), "high": 1 - math.exp(low)}


def _each(spent: Sequence[tuple[float, int]]) -> float | None:
    tokens = sum(count for _, count in spent)
    return math.fsum(seconds for seconds, _ in spent) / tokens if tokens else None


@step(minutes=10)
def rule_on_variant(
    turn: Turn,
    ids: list[str],
    challenger: dict[str, Any],
    speed: dict[str, Any],
    mlflow_run_id: str,
) -> Verdict:
    from storage.queries import records

    said, pairs = judged(turn, ids, challenger)
    made = next(
        one for one in records(home(), "evaluation", project=turn.project)
        if one.id == said["evaluation"]
    )  # fmt: skip
    passed, reason = ruling(made, project_of(turn).gate, speed)
    said = {**said, "passed": passed, "reason": reason, "speed": speed}
    log_evaluation(turn, mlflow_run_id, said, pairs)
    return said


def ruling(evaluation: Evaluation, gate: GateSection, speed: dict[str, Any]) -> tuple[bool, str]:
    """As the learning gate rules, with seconds a token as what an answer costs; the share saved
    must be the one that is wanted, and surely above nothing."""
    from environments.statistics import decide

    saved, low = speed["saved"], speed["low"]
    if saved is None:
        return False, "how long a token takes was not measured: no prompt was answered twice"
    told = (
        f"{saved:.0%} of the seconds a token saved ({low:.0%} to {speed['high']:.0%}, "
        f"{speed['prompts']} prompts)"
    )
    if saved < gate.cheaper or low <= 0:
        return False, f"not cheaper: {told}, {gate.cheaper:.0%} wanted"
    priced = msgspec.structs.replace(evaluation, champion_tokens=1.0, candidate_tokens=1.0 - saved)
    wanted = gate.model_copy(update={"accept": "not_worse_and_cheaper"})
    found = decide(priced, wanted)
    return found.passed, f"{found.reason}; {told}"
