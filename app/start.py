"""What each command does first: settings, quiet dependencies, progress on standard error."""

import os

from flywheel.settings import Settings, load, quiet_dependencies


def start(*, progress: bool = False) -> Settings:
    """Must run before anything that imports prefect, mlflow or transformers."""
    settings = load()
    settings.at().prefect.mkdir(parents=True, exist_ok=True)
    quiet_dependencies(settings.at())
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    if progress:
        from app.show import show_progress

        show_progress()
    return settings
