"""Settings in spite of values that do not fit: those are told, and their defaults are taken."""

from pydantic import ValidationError

from flywheel.errors import unfit
from flywheel.settings import Settings, load


def load_sound() -> tuple[Settings, list[str]]:
    """The settings, and a line for each FLYWHEEL_* value that does not fit."""
    try:
        return load(), []
    except ValidationError as error:
        names = [str(one["loc"][0]).removeprefix("FLYWHEEL_").lower() for one in error.errors()]
        told = [f"FLYWHEEL_{name.upper()}: {unfit(one)}"
                for name, one in zip(names, error.errors(), strict=True)]  # fmt: skip
        defaults = {name: Settings.model_fields[name].default for name in names}
        return Settings(**defaults), told
