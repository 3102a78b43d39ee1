"""What each command does first: settings, quiet dependencies, progress on standard error."""

import logging
import os

from pydantic import ValidationError

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.settings import Settings, load, quiet_dependencies


def start(*, progress: bool = False) -> Settings:
    """Must run before anything that imports prefect, mlflow or transformers.

    Raises:
        UsageError: a FLYWHEEL_* value that does not fit, or a home that cannot be written.
    """
    try:
        settings = load()
    except ValidationError as error:
        told = (f"FLYWHEEL_{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}"
                for one in error.errors())  # fmt: skip
        raise UsageError("; ".join(told)) from error
    have(settings.at())
    quiet_dependencies(settings.at())
    for name in ("PREFECT_LOGGING_LEVEL", "MLFLOW_LOGGING_LEVEL"):
        os.environ.setdefault(name, "WARNING")
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
