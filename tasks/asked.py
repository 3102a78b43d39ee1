"""Asked: what people want of the project in MLflow, and what is new there.

Enters a project; leaves plain data for the flow that answers it. Nothing of ours is opened where
nothing was ever registered.
"""

import time
from pathlib import Path
from typing import Any

import msgspec
from prefect import task

from flywheel.project import load_project
from tasks.events import REGISTERED, tell_registered, told_at
from tasks.slots import deployed_run
from tasks.step import worth_another_try
from tasks.turns import home

_PATIENCE_S = 900


@task(retries=2, retry_delay_seconds=2, retry_condition_fn=worth_another_try, timeout_seconds=300)
def look(folder: str) -> dict[str, Any]:
    """Returns: {"asks": [an Ask as plain data …], "newcomers": [version …]}, in order.

    A newcomer that somebody asked for is not one: its ask evaluates it.
    """
    from serving.registry import Registry
    from serving.registry_versions import asks, newcomers

    project, registry = load_project(Path(folder)).name, Registry(home())
    wanted = asks(registry, project)
    named = {one.version for one in wanted}
    return {
        "asks": [msgspec.to_builtins(one) for one in wanted],
        "newcomers": [one for one in newcomers(registry, project) if one not in named],
    }


@task(retries=2, retry_delay_seconds=2, retry_condition_fn=worth_another_try, timeout_seconds=300)
def tell_newcomer(folder: str, version: str) -> bool:
    """Whether its evaluation is an automation's, which was told of it now or a while ago; one that
    did not do it, because a turn was under way, say, is not waited for any longer."""
    project = load_project(Path(folder)).name
    if tell_registered(project, version):
        return True
    told = told_at(project, REGISTERED, version)
    return deployed_run() is not None and told is not None and _lately(told)


def _lately(told: float) -> bool:
    """A time from a clock that was set back since is long ago: nothing is waited for then."""
    return abs(time.time() - told) < _PATIENCE_S


@task(retries=2, retry_delay_seconds=2, retry_condition_fn=worth_another_try, timeout_seconds=300)
def put_in_line(folder: str) -> list[str]:
    """Sets back what was moved and asks for nothing, such as the alias `previous`; pages follow."""
    from serving.reconcile import reconcile
    from serving.registry import Registry
    from serving.registry_pages import write_pages
    from storage.committer import commit

    registry = Registry(home())
    if not registry.begun:
        return []
    told = reconcile(home(), registry, None)
    commit(home())
    write_pages(home(), registry, load_project(Path(folder)).name)
    return told


def who(ask: dict[str, Any]) -> tuple[str, str]:
    """Who asks, and why, as far as MLflow knows it: it keeps no author of an alias or a tag."""
    said = str(ask.get("said", ""))
    plain = said.lower() in ("", "true", "yes", "1", "promote")
    by = "MLflow" if plain else f"MLflow ({said[:200]})"
    return by, f"asked for by {ask['how']}" + ("" if plain else f" ({said[:500]})")
