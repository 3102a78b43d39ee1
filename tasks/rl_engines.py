"""Further engines that a run plays before, beside the home's own: [train.rl] engines.

Enter their URLs; leave, for the time of a block, those that answer, each with what says which
weights answer there. They are somebody else's: never started or stopped here, they lie on a machine
that sees the run's folder under the same path. Invariant: none is played before that does not say
of the weights that the run starts from what the home's engine says. One that is away as the run
starts is left out of it until it is started again.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flywheel.errors import EngineError, Refused
from flywheel.lineage import Deployment
from flywheel.project import Project
from tasks.rl_seat import seat_of
from tasks.starting import start_of
from tasks.turns import home, settings

if TYPE_CHECKING:
    from serving.engines.client import EngineClient
    from serving.interception import Served
    from serving.publishing import Seat

ASKED_S = 120.0
"""For one answer of an engine, from its first byte to its last: of those that load weights too."""
ALIKE = [((1, 2, 3, 4), (5, 6, 7, 8)), ((9, 8, 7), (6, 5, 4, 3))]
"""Prompt and completion ids, in every vocabulary, that two engines are asked about."""
_log = logging.getLogger("flywheel.rl")


@contextlib.contextmanager
def further(
    project: Project, start: Deployment, name: str, first: "tuple[Served, Seat]"
) -> "Iterator[dict[str, tuple[Served, Seat]]]":
    """
    Args:
        name: what the run's versions are called by.
        first: the home's engine.

    Raises:
        Refused: one is another model, or cannot take the run's versions.
    """
    found: dict[str, tuple[Served, Seat]] = {}
    with contextlib.ExitStack() as held:
        for url in map(_plain, dict.fromkeys(project.train.rl.engines)):
            if url in (*found, _plain(first[0].url)):
                continue
            try:
                client = held.enter_context(_client(project, start, url))
                held.callback(client.cut)
                held.callback(_forget, client, _start(name))
                found[url] = _taken(project, start, name, client, first)
            except EngineError as error:
                _log.warning("the run is played without %s: %s", url, error)
        yield found


def _client(project: Project, start: Deployment, url: str) -> "EngineClient":
    """Of either kind: the embedded engine says its digests, and vLLM nothing.

    Raises:
        EngineError: nobody answers.
    """
    from serving.engines.client import EngineClient
    from serving.engines.reach import Access

    secret = settings().engine_key
    key = secret.get_secret_value() if secret else None
    with EngineClient(url, timeout_s=ASKED_S, access=Access(key=key)) as asking:
        if not asking.ready():
            raise EngineError(f"the engine at {url} does not answer")
        if "tokenizer_digest" in asking.health():
            access = Access(key=key)
        else:
            access = Access(
                kind="vllm", key=key, model=str(start_of(start).model),
                max_rank=project.serving.max_rank,
            )  # fmt: skip
    return EngineClient(url, timeout_s=ASKED_S, access=access)


def _taken(
    project: Project,
    start: Deployment,
    name: str,
    client: "EngineClient",
    first: "tuple[Served, Seat]",
) -> "tuple[Served, Seat]":
    if project.train.method == "full" and "vllm" in (
        client.access.kind,
        first[1].client.access.kind,
    ):
        raise Refused(
            "train.rl.engines: a run of all weights is played before several embedded engines, or "
            "before one vLLM: a vLLM holds one model"
        )
    served, seat = seat_of(project, start, name, client, called=_start(name))
    _must_be_alike(project, start, (served, seat), first)
    template, tokenizer = first[0].template_digest, first[0].tokenizer_digest
    return served._replace(template_digest=template, tokenizer_digest=tokenizer), seat


def _must_be_alike(
    project: Project,
    start: Deployment,
    other: "tuple[Served, Seat]",
    first: "tuple[Served, Seat]",
) -> None:
    """Prompts become the same ids, and ids have the same logprobs.

    Raises:
        Refused: they do not.
    """
    (served, seat), (ours, own) = other, first
    why = _template_differs(start, served, ours, seat.client)
    if why is None:
        mine = own.client.logprobs_of(ours.model, ALIKE)
        theirs = seat.client.logprobs_of(served.model, ALIKE)
        apart = max(
            abs(one - two)
            for row, others in zip(mine, theirs, strict=True)
            for one, two in zip(row, others, strict=True)
        )
        most = max(seat.bounds.largest, own.bounds.largest)
        if not apart <= most:
            why = f"its logprobs of {served.model} are {apart:.3g} apart from them, {most:g} may be"
    if why is not None:
        raise Refused(
            f"train.rl.engines: {served.url} serves something else than the home's engine: {why}"
        )


def _template_differs(
    start: Deployment, served: "Served", ours: "Served", client: "EngineClient"
) -> str | None:
    from serving.engines.rendering import rendered
    from serving.engines.vllm_rendering import differs

    if client.access.kind == "vllm":
        found = rendered(home(), start_of(start).model)
        return found.why or differs(client, found)
    if served.template_digest == ours.template_digest:
        return None
    return "its chat template is another one"


def _start(name: str) -> str:
    """What such an engine knows the weights that a run starts from by."""
    return f"{name}-v0-start"


def _forget(client: "EngineClient", model: str) -> None:
    with contextlib.suppress(EngineError):
        if client.ready():
            client.unload_adapter(model)


def _plain(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
