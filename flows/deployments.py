"""Deployments: what `prefect.yaml` defines, filled in for a project of this home, on a server.

Enter projects; leave their deployments, schedules and automations, and nothing of theirs that the
definition does not have any more. Prefect's own `deploy` makes them, from one whole file, which is
also what a person may give it by hand.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.worker import have_pool
from flywheel.errors import FlywheelError, UsageError
from flywheel.home import Home
from flywheel.progress import report
from flywheel.project import Every, Project
from tasks.events import resource_of
from tasks.turns import home_id

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

CODE = Path(__file__).resolve().parent.parent
_PLACE = re.compile(r"\{\{\s*\$(FLYWHEEL_[A-Z]+)\s*\}\}")


def queue_of() -> str:
    """The work queue of this home: two homes may share a server without working off each other's
    runs."""
    return f"home-{home_id().lower()}"


def definition(home: Home, projects: Sequence[Project]) -> dict[str, Any]:
    """`prefect.yaml`, whole: every value filled in, every time the project's own."""
    template = yaml.safe_load((CODE / "prefect.yaml").read_text(encoding="utf-8"))
    template.pop("definitions", None)
    made: dict[str, Any] = filled({**template, "deployments": []}, values(home, None))
    for project in projects:
        for one in filled(template["deployments"], values(home, project)):
            made["deployments"].append(scheduled(one, project))
    return made


def values(home: Home, project: Project | None) -> dict[str, str]:
    found = {
        "FLYWHEEL_CODE": str(CODE),
        "FLYWHEEL_PYTHON": shlex.quote(sys.executable),
        "FLYWHEEL_HOME": str(home.root),
        "FLYWHEEL_QUEUE": queue_of(),
    }
    if project is not None:
        found |= {
            "FLYWHEEL_PROJECT": project.name,
            "FLYWHEEL_FOLDER": str(project.folder),
            "FLYWHEEL_TIMEZONE": project.timezone,
            "FLYWHEEL_RESOURCE": resource_of(project.name),
        }
    return found


def filled(template: Any, given: dict[str, str]) -> Any:
    """The template with our placeholders filled in; Prefect's own, such as an event's, stay."""
    if isinstance(template, dict):
        return {name: filled(value, given) for name, value in template.items()}
    if isinstance(template, list):
        return [filled(one, given) for one in template]
    if isinstance(template, str):
        return _PLACE.sub(lambda found: given.get(found[1], found[0]), template)
    return template


def scheduled(deployment: dict[str, Any], project: Project) -> dict[str, Any]:
    """The deployment at the project's own times, and without the events that it does not want."""
    section, flow = project.schedule, flow_of(deployment)
    every: Every = getattr(section, flow, "off")
    wanted = {
        "flywheel.graded.enough": section.enough_graded is not None,
        "flywheel.drift.broken": section.drift is not None,
    }
    return {
        **deployment,
        "schedules": [schedule(every, project.timezone, flow)] if every != "off" else [],
        "triggers": [
            one
            for one in deployment.get("triggers", [])
            if all(wanted.get(event, True) for event in one["expect"])
        ],
    }


def schedule(every: Every, timezone: str, slug: str) -> dict[str, Any]:
    """As `prefect.yaml` writes one. The seconds count from a fixed moment, so that deploying again
    does not move them."""
    if isinstance(every, int):
        anchor = "2026-01-01T00:00:00+00:00"
        return {"interval": every, "anchor_date": anchor, "timezone": timezone, "slug": slug}
    return {"cron": every, "timezone": timezone, "slug": slug}


def flow_of(deployment: dict[str, Any]) -> str:
    return str(deployment["entrypoint"].rpartition(":")[2])


def as_yaml(made: dict[str, Any]) -> str:
    return str(yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=100))


def deploy(home: Home, projects: Sequence[Project]) -> dict[str, list[str]]:
    """Makes the projects' deployments on the server, as often as one likes.

    Returns: project -> its deployments, as flow/PROJECT.

    Raises:
        UsageError: the server has them from another home.
        FlywheelError: Prefect refused; says what it said.
    """
    from prefect.client.orchestration import get_client

    made = definition(home, projects)
    with get_client(sync_client=True) as client:
        have_pool(client)
        for project in projects:
            ours(client, home, project.name)
        report("deploying", 0, len(made["deployments"]))
        _prefect_deploy(made)
        report("deploying", len(made["deployments"]), len(made["deployments"]))
        return {one.name: settle(client, home, one, made) for one in projects}


def settle(
    client: "SyncPrefectClient", home: Home, project: Project, made: dict[str, Any]
) -> list[str]:
    """Takes away what the definition has no more, and schedules that are off now: Prefect's deploy
    leaves both. Returns the project's deployments."""
    wanted = {flow_of(one): one for one in made["deployments"] if one["name"] == project.name}
    for flow, one in ours(client, home, project.name).items():
        if flow not in wanted:
            take_away(client, one)
        elif not wanted[flow]["schedules"]:
            for each in client.read_deployment_schedules(one.id):
                client.delete_deployment_schedule(one.id, each.id)
    return sorted(f"{flow}/{project.name}" for flow in wanted)


def remove(home: Home, name: str) -> list[str]:
    """Takes away all deployments of a project, with their automations and the runs that wait.

    Returns: what was taken away, as flow/PROJECT.
    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        there = ours(client, home, name)
        for one in there.values():
            take_away(client, one)
    return sorted(f"{flow}/{name}" for flow in there)


def ours(client: "SyncPrefectClient", home: Home, name: str) -> "dict[str, DeploymentResponse]":
    """By flow, the deployments of this home's project of that name.

    Raises:
        UsageError: they are another home's.
    """
    from prefect.client.schemas.filters import DeploymentFilter

    wanted = {"name": {"any_": [name]}, "tags": {"all_": ["flywheel"]}}
    found = {}
    for one in client.read_deployments(deployment_filter=DeploymentFilter.model_validate(wanted)):
        other = (one.job_variables.get("env") or {}).get("FLYWHEEL_HOME")
        if other != str(home.root) and one.work_queue_name != queue_of():
            raise UsageError(
                f"Prefect's server has deployments of {name} already, of the home {other}: give "
                "the project another name, or this home a server of its own (PREFECT_API_URL)"
            )
        found[client.read_flow(one.flow_id).name] = one
    return found


def take_away(client: "SyncPrefectClient", deployment: "DeploymentResponse") -> None:
    client.delete_resource_owned_automations(f"prefect.deployment.{deployment.id}")
    client.delete_deployment(deployment.id)


def _prefect_deploy(made: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(as_yaml(made))
        file.flush()
        arguments = ["--no-prompt", "deploy", "--all", "--prefect-file", file.name]
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=CODE,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode:
        raise FlywheelError(f"Prefect could not deploy:\n{done.stdout.strip()[-2000:]}")
