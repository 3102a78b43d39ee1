"""A run's metrics on their way to MLflow: each step's once, as they come, and alarms as tags.

Enters the trainer's metrics.jsonl; leaves metrics by step, and a tag `flywheel.alarm.KIND` with the
reason as soon as one holds. What is not known is not sent.
"""

import contextlib
import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.ids import digest
from trainer.alarms import Alarm, Heldout, alarms

_AT_ONCE = 900
"""Metrics a call; MLflow takes a thousand."""
_ALARM = "flywheel.alarm."
_log = logging.getLogger("flywheel.run")


def rows_of(metrics: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics.jsonl; the one that is being written is left out."""
    rows = []
    if metrics.exists():
        for line in metrics.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]


def words_of(row: Mapping[str, Any]) -> str:
    """A step's line for people: its loss, and beside it the reward of a run that samples."""
    return ", ".join(
        f"{name} {row[name]:.{digits}f}"
        for name, digits in (("loss", 4), ("reward", 3))
        if isinstance(row.get(name), int | float)
    )


def sent_so_far(client: Any, run_id: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """The last step whose metrics are there; -1 = none."""
    known = client.get_run(run_id).data.metrics
    ours = (named(name) for row in rows[:1] for name, _ in _numbers(row))
    name = "loss" if "loss" in known else next((one for one in ours if one in known), None)
    history = client.get_metric_history(run_id, name) if name else []
    return max((one.step for one in history), default=-1)


def send(client: Any, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    batch = [
        Metric(named(name), value, now, row["step"])
        for row in rows
        for name, value in _numbers(row)
    ]
    for start in range(0, len(batch), _AT_ONCE):
        client.log_batch(run_id, metrics=batch[start : start + _AT_ONCE])


def _numbers(row: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for name, value in row.items():
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


def named(name: str) -> str:
    """As MLflow takes it: a slice may be called anything. One that is changed ends in a digest of
    what it was, so that two stay two."""
    parts = [re.sub(r"[^\w.\- ]", "_", part).strip() for part in name.split("/")]
    clean = "/".join(part for part in parts if part.strip("."))[:200]
    return clean if clean == name else f"{clean} {digest(name)[:6]}".strip()


def raise_alarms(
    client: Any, run_id: str, rows: Sequence[Mapping[str, Any]], heldout: Heldout | None = None
) -> list[Alarm]:
    """Those that hold; each becomes a tag, and a line in the log when it is new."""
    found = alarms(rows, heldout)
    if not found:
        return found
    known = client.get_run(run_id).data.tags
    for one in found:
        if _ALARM + one.kind not in known:
            _log.warning("%s: %s", one.kind.replace("_", " "), one.reason)
            client.set_tag(run_id, _ALARM + one.kind, one.reason)
    return found
