"""The policy of every step of a turn: its result is kept by (run, step, inputs), so that a turn
that was killed redoes only what was not finished; what failed for outside reasons is tried again.

A gate's refusal and a person's mistake are not tried again: they would come out the same.
"""

import functools
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from prefect import task
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.tasks import Task

from flywheel.errors import CorruptFile, Refused, UsageError
from flywheel.ids import digest
from tasks.turns import Turn, home, run_folder

F = TypeVar("F", bound=Callable[..., Any])


def step(*, minutes: float, keep: bool = True) -> Callable[[F], F]:
    """A Prefect task of a turn, whose first argument is the turn.

    Args:
        minutes: after which it is given up.
        keep: whether its result is kept and found again by a later run of the same turn.
    """

    def wrap(function: F) -> F:
        made = task(
            name=function.__name__.replace("_", " "),
            retries=2,
            retry_delay_seconds=[1, 5],
            retry_condition_fn=worth_another_try,
            timeout_seconds=minutes * 60,
            persist_result=keep,
            cache_key_fn=key_of if keep else None,
            result_serializer="json",
        )
        return cast(F, made(timed(function)))

    return wrap


def timed(function: F) -> F:
    """Notes how long each real execution took, beside the run: `steps.jsonl`."""

    @functools.wraps(function)
    def measured(turn: Turn, *others: Any) -> Any:
        started, name = time.monotonic(), function.__name__
        try:
            return function(turn, *others)
        finally:
            line = {"step": name, "seconds": round(time.monotonic() - started, 3)}
            with (run_folder(turn) / "steps.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    return cast(F, measured)


def key_of(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """`<run id>-<step>-<digest of the home and the other inputs>`."""
    turn, *others = parameters.values()
    name = context.task.name.replace(" ", "-")
    return f"{turn.run_id}-{name}-{digest(str(home().root), others)[:12]}"


def worth_another_try(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    try:
        state.result(raise_on_failure=True)
    except (Refused, UsageError, CorruptFile):
        return False
    except Exception:
        return True
    return False
