"""One engine on the tiny model for all tests of this folder, and adapters that move its weights."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flywheel.home import Home
from serving.engines.client import EngineClient
from serving.engines.process import EngineProcess
from trainer.models import add_adapter, load_base, save_adapter

TINY = Path(__file__).resolve().parents[2] / "sorting" / "base"


def make_adapter(folder: Path, seed: int, scale: float = 0.05) -> Path:
    """An adapter whose weights are noise: it changes what the model says, reproducibly."""
    import torch

    model = load_base(TINY, threads=1).model
    random = torch.Generator().manual_seed(seed)
    for parameter in add_adapter(model, "made", seed=seed):
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=random) * scale)
    save_adapter(model, "made", folder)
    return folder


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {f"tiny-v{n}": make_adapter(folder / f"v{n}", seed=n) for n in (1, 2, 3)}


@pytest.fixture(scope="session")
def engine(
    tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Path]
) -> Iterator[EngineProcess]:
    home = Home(tmp_path_factory.mktemp("home"))
    served = {name: adapters[name] for name in ("tiny-v1", "tiny-v2")}
    with EngineProcess(home, TINY, threads=1, context=512, adapters=lambda: served) as process:
        yield process


@pytest.fixture
def client(engine: EngineProcess) -> Iterator[EngineClient]:
    with EngineClient(engine.url, timeout_s=60) as client:
        yield client


@pytest.fixture
def http(engine: EngineProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, timeout=60, trust_env=False) as client:
        yield client
