"""The engines, by the names that [serving] knows them by. A new one is a file and a line here."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.project import ServingSection
from flywheel.settings import Settings
from serving.engines.process import EngineProcess
from serving.engines.remote import RemoteVllm
from serving.engines.supervised import Adapters, Supervised
from serving.engines.vllm import VllmProcess

if TYPE_CHECKING:
    Make = Callable[[Home, Path, ServingSection, Settings, Adapters], Supervised | RemoteVllm]


def _embedded(
    home: Home, model: Path, serving: ServingSection, settings: Settings, adapters: Adapters
) -> Supervised:
    if serving.engine_url is not None:
        raise UsageError(
            '[serving] engine_url names a vLLM that somebody else runs: engine = "vllm" goes with '
            "it, or leave the URL out"
        )
    return EngineProcess(
        home, model, threads=settings.threads, context=serving.context, adapters=adapters
    )


def _vllm(
    home: Home, model: Path, serving: ServingSection, settings: Settings, adapters: Adapters
) -> Supervised | RemoteVllm:
    if serving.engine_url is not None:
        key = settings.engine_key.get_secret_value() if settings.engine_key else None
        return RemoteVllm(home, model, serving, adapters=adapters, key=key)
    return VllmProcess(
        home,
        model,
        serving,
        environment=settings.vllm,
        threads=settings.threads,
        adapters=adapters,
    )


ENGINES: "dict[str, Make]" = {"embedded": _embedded, "vllm": _vllm}
