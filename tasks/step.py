"""The policy of every step of a turn: its result is kept by (run, step, inputs), so that a turn
that was killed redoes only what was not finished; what failed for outside reasons is tried again.

A gate's refusal and a person's mistake are not tried again: they would come out the same.
"""

import contextlib
import functools
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from prefect import task
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.tasks import Task

from flywheel import durable
from flywheel.errors import BadRecord, CorruptFile, FlywheelError, Full, Refused, UsageError
from flywheel.ids import digest
from flywheel.progress import report
from tasks.turns import Turn, home, home_id, run_folder

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
        except Exception as error:
            if durable.is_full(error) and not isinstance(error, Full):
                raise Full(
                    f"no space left in {home().root} ({name}): free some and run the turn again"
                ) from error
            raise
        finally:
            if not turn.looked:
                _took(turn, name, time.monotonic() - started)

    return cast(F, measured)


def _took(turn: Turn, name: str, seconds: float) -> None:
    line = {"step": name, "seconds": round(seconds, 3)}
    with contextlib.suppress(OSError), (run_folder(turn) / "steps.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")  # a full disk must not hide what failed


def key_of(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """`<run id>-<step>-<digest of the home's id and the other inputs>`."""
    turn, *others = parameters.values()
    name = context.task.name.replace(" ", "-")
    return f"{turn.run_id}-{name}-{digest(home_id(), others)[:12]}"


def worth_another_try(this: Task[..., Any], _: TaskRun, state: State[Any]) -> bool:
    """Whether what failed did so for reasons outside our code, and may have passed by now."""
    try:
        state.result(raise_on_failure=True)
    except CERTAIN:
        return False
    except Exception as error:
        again = isinstance(error, FlywheelError | OSError) or _of(error) in OTHERS
        if again:
            report(this.name, 0, None, f"failed, and may be tried again: {error}")
        return again
    return False


CERTAIN = (Refused, UsageError, CorruptFile, BadRecord, Full)
"""Errors of ours that would come out the same."""
OTHERS = frozenset(("httpx", "httpcore", "openai", "sqlite3", "sqlalchemy", "mlflow", "duckdb"))
"""Packages whose errors speak of the world: a connection, a lock, a busy database. What else is no
error of ours or of the system's (TypeError, KeyError …) is a mistake in code."""


def _of(error: Exception) -> str:
    """The package that an error comes from."""
    return type(error).__module__.partition(".")[0]
