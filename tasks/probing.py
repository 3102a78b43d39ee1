"""The probe that the serving gate compares the engine with, for a version that is tried.

Enters a trial and its version; leaves `probe.json` in the trial's folder: the training run's own,
or, for weights that no run of ours trained, one made now from what the version itself answered.
"""

import shutil
from pathlib import Path
from typing import Any

from flywheel.errors import Refused
from flywheel.lineage import Deployment
from flywheel.records import Trace, last_answer
from tasks.gates import Verdict
from tasks.ordered import carried_out
from tasks.turns import Turn, home, run_folder, settings

_PAIRS = 8


def have_probe(turn: Turn, deployment: Deployment, evaluation: Verdict) -> None:
    """
    Raises:
        Refused: the adapter is none, or not one of this base model.
        FlywheelError: the probe could not be made; says why.
    """
    wanted, trained = run_folder(turn) / "probe.json", trained_probe(deployment)
    if trained is not None:
        shutil.copyfile(trained, wanted)
    elif not wanted.is_file():
        _make(turn, deployment, _pairs(turn, evaluation), wanted)


def trained_probe(deployment: Deployment) -> Path | None:
    """The training run's own; None = no run of ours trained it, or its folder is gone."""
    path = home().runs / (deployment.run_id or "none") / "probe.json"
    return path if path.is_file() else None


def _pairs(turn: Turn, evaluation: Verdict) -> list[dict[str, Any]]:
    """Prompts and what the version answered to them, as tokens."""
    from storage.queries import traces

    run_id = evaluation.get("taken_from", turn.run_id)
    pairs: list[dict[str, Any]] = []
    for batch in traces(home(), project=turn.project, origin=("evaluation",), run_id=run_id):
        for trace in batch:
            found = _tokens(trace)
            if found is not None and len(pairs) < _PAIRS:
                pairs.append(found)
    return pairs


def _tokens(trace: Trace) -> dict[str, Any] | None:
    choice = last_answer(trace)
    if trace.attributes.get("side") != "candidate" or choice is None or choice.tokens is None:
        return None
    tokens = choice.tokens
    if not tokens.prompt_ids or not tokens.completion_ids:
        return None
    return {"prompt_ids": tokens.prompt_ids, "completion_ids": tokens.completion_ids}


def _make(turn: Turn, deployment: Deployment, pairs: list[dict[str, Any]], out: Path) -> None:
    if not pairs:
        raise Refused(
            f"nothing to check {deployment.name} with: the engine gave no token ids for its answers"
        )
    start = turn.start
    order = {
        "base_model": deployment.base_model,
        "adapter": str(home().path(deployment.adapter or "")),
        "old": str(home().path(start.adapter)) if start.adapter else None,
        "pairs": pairs,
        "out": str(out),
        "threads": settings().threads,
    }
    failed = f"{deployment.name} cannot be checked"
    carried_out("trainer.probing", order, run_folder(turn), minutes=10, failed=failed)
