"""`flywheel deploy`: a project's flows on Prefect's schedule."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli import echo, echo_json
from app.start import start

if TYPE_CHECKING:
    from flywheel.project import Project


@click.command("deploy")
@click.argument("projects", type=click.Path(path_type=Path), nargs=-1)
@click.option("--remove", "removed", metavar="NAME", multiple=True,
              help="Take the deployments of the project NAME away, and what waits.")  # fmt: skip
@click.option("--print", "as_yaml", is_flag=True,
              help="Only print the file that Prefect would be given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    projects: tuple[Path, ...], removed: tuple[str, ...], as_yaml: bool, as_json: bool
) -> None:
    """Put the flows of each PROJECT (default: this folder) on Prefect's schedule.

    Their times are in [schedule] of flywheel.toml. Do it again after a change; it is made as often
    as one likes. `flywheel prefect` runs what is due.
    """
    settings = start(progress=True)
    from flywheel.project import load_project

    home = settings.at()
    folders = projects or (() if removed else (Path("."),))
    loaded = [load_project(folder) for folder in folders]
    if as_yaml:
        from flows.deployments import as_yaml as text
        from flows.deployments import definition

        echo(text(definition(home, loaded)), nl=False)
        return
    from flows.server import running, start_prefect

    start_prefect(home)
    from flows.deployments import deploy, remove
    from flywheel.known import remember

    taken = {name: remove(home, name) for name in removed}
    made: dict[str, Any] = deploy(home, loaded) if loaded else {}
    for project in loaded:
        remember(home, project)
    kept = running(home)
    if as_json:
        echo_json({"deployed": made, "removed": taken, "server": kept.url if kept else None})
        return
    for name, names in taken.items():
        echo(f"{name}: " + (", ".join(names) + " removed" if names else "had none"))
    for name, names in made.items():
        echo(f"{name}: {', '.join(names)}")
    for project in loaded:
        for name, every in short_of_a_minute(project).items():
            echo(
                f"{project.name}: {name} every {every} s: a run is a process of its own and takes "
                "some of that to start; what comes while one runs is cancelled, and listed so"
            )
    if made and (kept is None or not kept.worker):
        echo("`flywheel prefect` runs what is due")


def short_of_a_minute(project: "Project") -> dict[str, int]:
    """The flows that are to start more often than runs of them may end."""
    flows = {"ingest", "grade", "curate", "turn", "registry", "retention"}
    given = project.schedule.model_dump(include=flows)
    return {name: every for name, every in given.items() if isinstance(every, int) and every < 60}
