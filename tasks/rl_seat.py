"""Where a run's rollouts are answered: an engine, and what says which weights answer there.

A run plays before the home's engine, beside all that it serves. Where that holds one model alone,
as vLLM does, a run of all weights has an engine of its own: they replace what others stand on.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.lineage import Deployment
from flywheel.project import Project
from tasks.starting import start_of
from tasks.turns import engine, home, settings

if TYPE_CHECKING:
    from serving.engines.client import EngineClient
    from serving.interception import Served
    from serving.publishing import Seat

    Replace = Callable[[Path], None]


@contextlib.contextmanager
def engine_of(
    project: Project, start: Deployment
) -> "Iterator[tuple[EngineClient, Replace | None]]":
    """The engine while the block lasts, and what replaces its base weights; None = nothing may.

    Raises:
        EngineError: none runs, or none could be started.
    """
    with engine() as client:
        if project.train.method != "full" or client.access.kind == "embedded":
            try:
                yield client, None
            finally:
                client.cut()  # a thread that still asks would hold up who interrupted the run
            return
    from serving.engines.table import ENGINES

    section, given = project.serving, settings()
    make = ENGINES[given.engine or section.engine]
    with contextlib.ExitStack() as held:
        own = make(home(), start_of(start).model, section, given, dict)
        held.callback(own.stop)
        own.start()
        yield held.enter_context(own.client()), own.load_weights


def seat_of(
    project: Project,
    start: Deployment,
    name: str,
    client: "EngineClient",
    replace: "Replace | None" = None,
    *,
    called: str | None = None,
) -> "tuple[Served, Seat]":
    """The engine, answering with the weights that the run starts from.

    Args:
        name: what the run's versions are called by.
        called: what the engine knows the start's weights by, where it serves nobody else; None = by
            their own name.

    Raises:
        EngineError: it does not answer.
        Refused: it does not take them.
    """
    from serving.interception import Served
    from serving.policies import Policies, Policy, name_of
    from serving.publishing import Seat
    from serving.routing import served_as
    from serving.verify import bounds_of

    model, access, weights = served_as(start), client.access, start.adapter
    if called is not None and weights is not None:
        model = called
    if replace is not None and start.kind == "full":
        model, weights = "base", None  # which its own engine was started with
    if weights is not None and model not in client.models():
        client.load_adapter(model, home().path(weights))
    said = client.health()
    served = Served(
        client.url,
        model,
        key=access.key,
        deployment=name_of(name, 0),
        template_digest=said.get("template_digest"),
        tokenizer_digest=said.get("tokenizer_digest"),
        base=start.base_model,
    )
    first = Policies(Policy(0, model, name_of(name, 0)))
    bounds = bounds_of(project.serving, access.kind)
    kept = home().path(weights) if weights is not None else None
    return served, Seat(client, first, replace=replace, bounds=bounds, start=kept)


def forget_earlier(client: "EngineClient", project: str, name: str) -> None:
    """Runs of the project that were killed and are not gone on with, as where its settings changed
    since, left versions in the home's engine. The project's turn is held: none of them lives.

    Args:
        name: what this run's versions are called by; its own are the publisher's to clear.
    """
    of_a_run = re.compile(re.escape(project) + r"-[0-9a-f]{12}-v\d+-[0-9a-f]{12}")
    for model in client.models():
        if of_a_run.fullmatch(model) and not model.startswith(f"{name}-v"):
            client.unload_adapter(model)
