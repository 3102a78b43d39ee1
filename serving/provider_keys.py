"""The keys of the providers that projects name: they stand in the environment, and are looked for
there at each request, so that a new one needs no restart.

Invariant: what is told of a key does not hold it.
"""

import logging
from collections.abc import Iterable

from flywheel.errors import MissingPart
from flywheel.masking import why_no_key
from flywheel.project import Project
from flywheel.serving_section import ProviderSection
from flywheel.settings import secret

_log = logging.getLogger("flywheel.server")


def key_of(name: str, section: ProviderSection) -> str | None:
    """None = the provider `name` wants none.

    Raises:
        MissingPart: there is none that can be sent.
    """
    if section.key_env is None:
        return None
    key = secret(section.key_env)
    why = why_no_key(key) if key else "which is not set"
    if why is not None:
        where = f"the key of the provider {name} is looked for in {section.key_env}"
        raise MissingPart(f"{where}, {why}")
    return key


def warn_of_keys(projects: Iterable[Project]) -> None:
    """Before anybody asks for one."""
    for project in projects:
        for name, section in project.providers.items():
            try:
                key_of(name, section)
            except MissingPart as error:
                _log.warning("%s: %s: it cannot answer", project.name, error)
