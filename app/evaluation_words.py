"""Evaluations in words: the list of a home's, and one of them in some lines.

Enter a home, or a run's summary. Leaves rows and text; what is not known reads "unknown".
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Record
from tasks.eval_plan import Plan, plan_of, runs

_REASONS = 3


def listed(home: Home) -> list[dict[str, Any]]:
    """The evaluations of a home, the newest first."""
    rows = []
    for folder in runs(home):
        try:
            plan = plan_of(folder)
        except UsageError as error:
            plan = Plan(environment=str(error), name="", digest="", model="nobody knows")
        mean = _mean(folder)
        rows.append(
            {
                "run": folder.name,
                "begun": _begun(folder),
                "environment": plan.environment,
                "model": plan.served or plan.model,
                "state": "done" if (folder / "done").exists() else "not done",
                "reward": "unknown" if mean is None else f"{mean:.3f}",
                "report": str(folder / "report.html"),
            }
        )
    return rows


def _begun(folder: Path) -> str | None:
    """When its plan was written."""
    try:
        written = datetime.fromtimestamp((folder / "plan.json").stat().st_mtime, UTC)
    except OSError:
        return None
    return written.isoformat(timespec="seconds")


def named(environment: str) -> str:
    """One that lies in a file or folder by its last name; the plan has the whole path."""
    where = Path(environment.partition(":")[0])
    return Path(environment).name if where.is_absolute() and where.exists() else environment


class _Reward(Record, frozen=True):
    mean: float | None = None


class _Summary(Record, frozen=True):
    reward: _Reward = _Reward()


def _mean(folder: Path) -> float | None:
    """Of a run's summary; None where there is none that can be read."""
    try:
        return msgspec.json.decode(
            (folder / "summary.json").read_bytes(), type=_Summary
        ).reward.mean
    except (OSError, msgspec.DecodeError):
        return None


def shown(summary: Mapping[str, Any]) -> str:
    """A run in some lines of text."""
    episodes, reward, tokens = summary["episodes"], summary["reward"], summary["tokens"]
    lines = [
        f"{named(summary['environment'])} by {summary['model']}",
        f"  reward      {_number(reward['mean'])}  (95% {_between(reward)}; "
        f"{reward['problems']} problems, {episodes['graded']} episodes graded)",
    ]
    for one in _few(summary["pass"]):
        lines.append(f"  pass@{one['k']:<7}{_number(one['any'])}     pass^{one['k']} "
                     f"{_number(one['all'])}")  # fmt: skip
    if len(summary["slices"]) > 1:
        lines += [f"  {one['name'][:24]:<24} {_number(one['mean'])}  (95% {_between(one)})"
                  for one in summary["slices"]]  # fmt: skip
    lines += [f"  {one['name'][:24]:<24} {_number(one['mean'])}  ({_weight(one)})"
              for one in summary["rewards"]]  # fmt: skip
    cost = summary["cost"]["usd"]
    lines += [
        f"  tokens      {_count(tokens['input'])} read, {_count(tokens['output'])} answered",
        f"  cost        {summary['cost']['reason'] if cost is None else f'${cost:.4f}'}",
        f"  ended       {', '.join(f'{name}: {n}' for name, n in summary['ended'].items())}",
    ]
    if episodes["not_graded"]:
        lines.append(f"  {episodes['not_graded']} episodes could not be graded")
        lines += [f"    {times} times: {why or 'no reason was kept'}"
                  for why, times in list(summary["not_graded"].items())[:_REASONS]]  # fmt: skip
    if summary["unreadable_problems"]:
        lines.append(f"  {summary['unreadable_problems']} rows of the task set could not be read")
        lines += [f"    {one}" for one in summary["unreadable"]]
    lines += [f"  {name} moves no score: {why}" for name, why in summary["informing"].items()]
    if episodes["infrastructure"]:
        lines.append(f"  {episodes['infrastructure']} episodes failed for infrastructure: "
                     f"`flywheel eval --resume {summary['run']}` makes them again")  # fmt: skip
    return "\n".join([*lines, f"  report      {summary['report']}"])


def _weight(one: Mapping[str, Any]) -> str:
    if one["kind"] == "metric":
        return "metric"
    return f"weight {_number(one['weight'])}" + (" a step" if one["kind"] == "step" else "")


def _few(passed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """k = 1, 2, 4, 8 … and the last."""
    return [one for one in passed if one["k"] & (one["k"] - 1) == 0 or one is passed[-1]]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _between(found: Mapping[str, Any]) -> str:
    return "unknown" if found["low"] is None else f"{found['low']:.3f} to {found['high']:.3f}"
