"""Canary: a version of the registry is fetched, probed, and given a share of the requests.

Enters a version and a share; leaves who answers. It does not wait for a turn of the project: what
changes who serves takes turns by a lock of its own.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from prefect import task

from flywheel.errors import Busy
from flywheel.lineage import Deployment
from flywheel.project import load_project
from tasks.probing import have_probe, trained_probe
from tasks.serving_gate import serving_check
from tasks.step import step, worth_another_try
from tasks.trial import Trial, evaluation_of, fetch_version, open_trial
from tasks.turns import Turn, engine, home, settings


@contextlib.contextmanager
def answering(folder: str) -> Iterator[None]:
    """With a server that answers for the project: the recorded one, else one for the block."""
    from serving.server import ensure

    with ensure(home(), load_project(Path(folder)), settings()):
        yield


def probed(folder: str, version: str, by: str) -> tuple[Turn, dict[str, Any], list[str]]:
    """The version, ready for the serving gate, and problems to ask it. One that no run of ours
    trained is evaluated first: its own answers are what the gate compares."""
    asked = Trial(folder=folder, version=version, promote=False, by=by)
    challenger = fetch_version(asked)
    this, problems = open_trial(asked, challenger)
    deployment = msgspec.convert(challenger, Deployment)
    made: dict[str, Any] = {}
    if trained_probe(deployment) is None:
        made = evaluation_of(asked, this, problems, challenger)
    have_probe(this, deployment, made)
    return this, challenger, problems[:2]


@step(minutes=15, keep=False)
def give_share(
    turn: Turn, challenger: dict[str, Any], smoke: list[str], share: float, by: str, reason: str
) -> dict[str, Any]:
    """Runs the protocol: serving gate, routing file, alias, Decision."""
    from serving.promotion import set_canary
    from serving.registry import Registry

    deployment, client = msgspec.convert(challenger, Deployment), engine()
    try:
        set_canary(
            home(),
            deployment,
            share,
            engine=client,
            registry=Registry(home()),
            verify=lambda: serving_check(turn, client, deployment, smoke),
            by=by,
            reason=reason or "asked for by a person",
        )
    finally:
        written_down(turn.project)
    return standing_of(turn.project)


@task(retries=2, retry_delay_seconds=1, retry_condition_fn=worth_another_try)
def take_share(folder: str, version: str | None, by: str, reason: str) -> dict[str, Any]:
    """Ends the project's canary; where none runs, its shadow.

    Raises:
        UsageError: that version answers no share, and is no shadow.
    """
    from serving.canary import end_canary
    from serving.presence import running_engine
    from serving.registry import Registry
    from serving.rerouting import end_shadow
    from serving.routing import canary_of, read

    project, client = load_project(Path(folder)).name, running_engine(home())
    why, route = reason or "ended by a person", read(home()).projects.get(project)
    if canary_of(home(), project) is None and route is not None and route.shadow is not None:
        end_shadow(home(), project, version=version, engine=client, by=by, reason=why)
    else:
        end_canary(
            home(), project, version, engine=client, registry=Registry(home()), by=by, reason=why
        )
    written_down(project)
    return standing_of(project)


def written_down(project: str) -> None:
    """The decision is in the store, and on MLflow's pages. Where another commits just now, the
    decision waits in the inbox, and the next command does it."""
    from serving.registry import Registry
    from serving.registry_pages import write_pages
    from storage.committer import commit

    with contextlib.suppress(Busy):
        commit(home())
        write_pages(home(), Registry(home()), project)


def standing_of(project: str) -> dict[str, Any]:
    from serving.routing import read

    route = read(home()).projects[project]
    return {
        "project": project,
        "champion": route.champion.name,
        "challenger": route.challenger.name if route.challenger else None,
        "share": route.share,
        "shadow": route.shadow.name if route.shadow else None,
        "shadow_share": route.shadow_share,
    }
