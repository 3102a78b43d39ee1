"""A provider's model as one that is sampled, evaluated and learnt from.

Enters an external deployment and its project; leaves a `Sampler` that is there for the block. Its
answers come as text: it has no tokens and no log-probabilities of ours.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flywheel.errors import UsageError
from flywheel.lineage import Deployment
from flywheel.project import Project

if TYPE_CHECKING:
    from environments.rollouts import Sampler


@contextlib.contextmanager
def provided(project: Project, deployment: Deployment) -> "Iterator[Sampler]":
    """
    Raises:
        UsageError: the project's file does not name the provider, or its key is not set.
    """
    from environments.rollouts import Sampler
    from serving.provider_keys import key_of
    from serving.providers.relay import relay

    name = deployment.provider or ""
    section = project.providers.get(name)
    if section is None:
        raise UsageError(
            f"{deployment.name} is served by {name!r}: name it in [providers] of {project.name}"
        )
    with relay(name, section, key_of(name, section)) as there:
        yield Sampler(
            there.url,
            section.model,
            key=there.key,
            deployment=deployment.name,
            timeout_s=section.timeout_s,
            tokens=False,
        )
