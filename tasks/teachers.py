"""The teacher of a run that distils: which engine says how likely the student's tokens are.

Enter a project and the engine that its rollouts are played before. Leaves, for the time of a block,
what algorithms ask (`trainer.algorithms.contract.Context.teacher`), or None where none of the run's
does. Without a [train.teacher] url it is the run's own engine: its base model, or with
`self_distill` the newest version itself.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flywheel.errors import UsageError
from flywheel.project import Project
from flywheel.settings import secret
from flywheel.train_section import TeacherSection

if TYPE_CHECKING:
    from serving.engines.client import EngineClient
    from serving.policies import Policies
    from serving.teacher import Teacher
    from trainer.render import Rendering

ASK = frozenset(("distill", "self_distill"))
"""Algorithms that ask one."""


@contextlib.contextmanager
def teaching(
    project: Project, engine: "EngineClient", policies: "Policies", rendering: "Rendering"
) -> "Iterator[Teacher | None]":
    """
    Args:
        policies: the run's own, of `engine`.

    Raises:
        Refused: the teacher has another tokenizer than the student, or no such model.
        EngineError: it does not answer.
        UsageError: its key is not set.
    """
    from serving.teacher import Teacher, must_read_alike

    train = project.train
    algorithms = {train.algorithm, *(entry.algorithm for entry in train.mixture)}
    if not algorithms & ASK:
        yield None
        return
    section = train.teacher or TeacherSection()
    with contextlib.ExitStack() as stack:
        client = engine
        if section.url is not None:
            client = stack.enter_context(_elsewhere(section))
            stack.callback(client.cut)  # one that is slow holds up nobody who interrupts the run
        itself = section.url is None and section.model is None and "self_distill" in algorithms
        if itself:
            yield Teacher(client, lambda: policies.now.model)
            return
        model = section.model or "base"
        must_read_alike(client, model, rendering)
        yield Teacher(client, lambda: model)


def _elsewhere(section: TeacherSection) -> "EngineClient":
    from serving.engines.client import EngineClient
    from serving.engines.reach import Access

    assert section.url is not None
    key = secret(section.key_env) if section.key_env else None
    if section.key_env and key is None:
        raise UsageError(f"the teacher's key is in {section.key_env}, which is not set")
    url = section.url.rstrip("/").removesuffix("/v1")
    return EngineClient(url, access=Access(kind="vllm", key=key))
