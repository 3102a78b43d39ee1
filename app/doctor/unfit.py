"""Settings in spite of values that do not fit: those are told, and their defaults are taken."""

from flywheel.settings import Settings, Unfit, load, variable_of


def load_sound() -> tuple[Settings, list[str]]:
    """The settings, and a line for each FLYWHEEL_* value that does not fit."""
    try:
        return load(), []
    except Unfit as error:
        defaults = {name: getattr(Settings, name) for name in error.why}
        told = [f"{variable_of(name)}: {reason}" for name, reason in error.why.items()]
        return Settings(**defaults), told
