"""The engines, by the names that [serving] knows them by. A new one is a file and a line here."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.serving_section import ServingSection
from flywheel.settings import Settings
from serving.engines.fleet import Fleet
from serving.engines.process import EngineProcess
from serving.engines.remote import RemoteVllm
from serving.engines.supervised import Adapters, Supervised
from serving.engines.vllm import VllmProcess

if TYPE_CHECKING:
    Make = Callable[
        [Home, Path, ServingSection, Settings, Adapters], Supervised | RemoteVllm | Fleet
    ]


def _embedded(
    home: Home, model: Path, serving: ServingSection, settings: Settings, adapters: Adapters
) -> Supervised | Fleet:
    if serving.engine_url is not None or serving.engine_urls:
        raise UsageError(
            '[serving] engine_url names a vLLM that somebody else runs: engine = "vllm" goes with '
            "it, or leave the URL out"
        )

    def one() -> EngineProcess:
        return EngineProcess(
            home, model, threads=settings.threads, context=serving.context, adapters=adapters
        )

    return one() if serving.replicas == 1 else Fleet([one() for _ in range(serving.replicas)])


def _vllm(
    home: Home, model: Path, serving: ServingSection, settings: Settings, adapters: Adapters
) -> Supervised | RemoteVllm | Fleet:
    urls = serving.engine_urls or ((serving.engine_url,) if serving.engine_url else ())
    if urls:
        key = settings.engine_key.get_secret_value() if settings.engine_key else None
        ones = [serving.model_copy(update={"engine_url": url}) for url in urls]
        remote = [RemoteVllm(home, model, at, adapters=adapters, key=key) for at in ones]
        return remote[0] if len(remote) == 1 else Fleet(remote)
    shared = secrets.token_urlsafe(24)
    children = [
        VllmProcess(
            home,
            model,
            serving,
            environment=settings.vllm,
            threads=settings.threads,
            adapters=adapters,
            number=number,
            key=shared,
        )
        for number in range(serving.replicas)
    ]
    return children[0] if len(children) == 1 else Fleet(children)


ENGINES: "dict[str, Make]" = {"embedded": _embedded, "vllm": _vllm}
