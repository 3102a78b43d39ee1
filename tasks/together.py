"""Several projects' runs side by side, up to each one's own end.

Enter turns; leave their datasets, and then what became of each. Invariant: a project that is
refused or fails, at whatever step, leaves the others alone.
"""

from typing import Any

from flywheel.errors import FlywheelError, Refused
from tasks.curate import curate_dataset
from tasks.gates import Verdict
from tasks.mine import mine_problems
from tasks.sample import sample_rollouts
from tasks.train import train_candidate
from tasks.turns import Turn, close_turn


def curate_datasets(turns: list[Turn]) -> list[Verdict]:
    """Project by project the dataset's verdict; `told` in it = why there is none."""
    return [_curated(turn) for turn in turns]


def _curated(turn: Turn) -> Verdict:
    try:
        return curate_dataset(turn, sample_rollouts(turn, mine_problems(turn)))
    except Exception as error:
        return {"passed": False, "told": _told(error)}


def train_candidates(turns: list[Turn], datasets: list[Verdict]) -> list[dict[str, Any]]:
    """
    Returns: project by project what `train_candidate` does, or why there is none: `refused` by the
    data gate, or `failed`.
    """
    begun = [
        train_candidate.submit(turn, dataset) if dataset["passed"] else None  # type: ignore[attr-defined]
        for turn, dataset in zip(turns, datasets, strict=True)
    ]
    found: list[dict[str, Any]] = []
    for turn, dataset, future in zip(turns, datasets, begun, strict=True):
        if future is None:
            told = dataset.get("told") or {"refused": dataset["reason"]}
        else:
            told = _trained(future)
        if "refused" in told:
            close_turn(turn)
        found.append({"project": turn.project, **told})
    return found


def _trained(future: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = future.result()
    except Exception as error:
        return _told(error)
    return found


def _told(error: Exception) -> dict[str, str]:
    if isinstance(error, Refused):
        return {"refused": str(error)}
    kind = "" if isinstance(error, FlywheelError) else f"{type(error).__name__}: "
    return {"failed": f"{kind}{error}"}
