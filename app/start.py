"""What each command does first: settings, quiet dependencies, progress on standard error."""

import logging
import os
from pathlib import Path

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.settings import Settings, load, quiet_dependencies


def start(*, progress: bool = False) -> Settings:
    """Must run before anything that imports prefect, mlflow or transformers.

    Raises:
        UsageError: a FLYWHEEL_* value that does not fit, or a home that cannot be written.
    """
    settings = load()
    have(settings.at())
    quiet_dependencies(settings.at())
    for name in ("PREFECT_LOGGING_LEVEL", "MLFLOW_LOGGING_LEVEL"):
        os.environ.setdefault(name, "WARNING")
    # What went wrong is told once, by us; Prefect's pages have its own account.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    if progress:
        from app.show import show_progress

        show_progress()
    return settings


def have(home: Home) -> None:
    """Makes the home; it must be one that can be written to."""
    try:
        home.prefect.mkdir(parents=True, exist_ok=True)
        if not os.access(home.root, os.W_OK | os.X_OK):
            raise PermissionError("no permission to write")
    except OSError as error:
        raise UsageError(
            f"the home {home.root} cannot be written: {error.strerror or error}; FLYWHEEL_HOME "
            "names another"
        ) from error


def own_mlflow(home: Home) -> None:
    """A home keeps its own MLflow, beside the routing file that its aliases follow.

    Raises:
        UsageError: MLFLOW_TRACKING_URI names another; what is there would not be written to.
    """
    given, place = os.environ.get("MLFLOW_TRACKING_URI", ""), str(home.mlflow.resolve())
    if given and place not in given:
        raise UsageError(
            f"MLFLOW_TRACKING_URI is {given}, and this home keeps its runs and versions in {place}:"
            " a server for several homes is not supported. Unset it; `flywheel mlflow` shows them"
        )


def turnable(folder: Path, settings: Settings) -> str:
    """The project's folder for a flow, which may now run: what would stop it at once is told first.

    Raises:
        ProjectError: its file, its environment or its rules cannot be used.
        MissingPart: its base model is not here.
    """
    from environments.load import load_environment
    from flows.server import start_prefect
    from flywheel.known import remember
    from flywheel.project import load_project
    from serving.server import base_model_of
    from storage.committer import bring_up
    from storage.curate import rule_specs

    own_mlflow(settings.at())
    project = load_project(folder)
    load_environment(project.environment.path, project.folder, project.environment.config)
    rule_specs(project.curate)
    base_model_of(project, settings)
    remember(settings.at(), project)
    bring_up(settings.at())
    start_prefect(settings.at())
    return str(folder)
