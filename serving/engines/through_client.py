"""What every engine that is spoken to over HTTP does the same way: one call of its client each."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving.engines.client import EngineClient
from serving.engines.contract import Generated


class ThroughClient(ABC):
    """That part of `contract.Engine` which needs nothing but a client of the engine."""

    @abstractmethod
    def client(self, *, timeout_s: float = 600.0) -> EngineClient:
        """One that knows how this engine is reached."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,)

    def ready(self) -> bool:
        with self.client() as client:
            return client.ready()

    def load_adapter(self, name: str, folder: Path) -> None:
        with self.client() as client:
            client.load_adapter(name, folder)

    def unload_adapter(self, name: str) -> None:
        with self.client() as client:
            client.unload_adapter(name)

    def generate(
        self, model: str, prompt_ids: Sequence[int], *, max_tokens: int, **sampling: Any
    ) -> list[Generated]:
        with self.client() as client:
            return client.generate(model, prompt_ids, max_tokens=max_tokens, **sampling)

    def drain(self) -> None:
        with self.client() as client:
            client.drain()
