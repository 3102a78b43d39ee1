"""One engine of each kind on the tiny model for all tests of this folder, and adapters that move
its weights."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flywheel.home import Home
from flywheel.serving_section import ServingSection
from flywheel.settings import Settings
from serving.engines.client import EngineClient
from serving.engines.process import EngineProcess
from serving.engines.supervised import Supervised
from serving.engines.vllm import VllmProcess
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


def vllm_environment() -> Path:
    """Where vLLM is installed. Without it these tests are skipped, but not where the suite brought
    it."""
    environment = Settings().vllm
    if not (environment / ".installed").exists():
        if os.environ.get("FLYWHEEL_TEST_VLLM"):
            pytest.fail(f"no vLLM at {environment}: `make install-vllm`")
        pytest.skip(f"no vLLM at {environment}: `make install-vllm` brings it")
    return environment


def tied_copy(folder: Path) -> Path:
    """The tiny model with its output head tied to its embeddings."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def vllm(
    tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Path]
) -> Iterator[VllmProcess]:
    """The real vLLM, of which all tests share one. Its base is tied, so that a stale head can be
    brought about, and its routes for development are open for the same reason."""
    served = {name: adapters[name] for name in ("tiny-v1", "tiny-v2")}
    with VllmProcess(
        Home(tmp_path_factory.mktemp("vllm")),
        tied_copy(tmp_path_factory.mktemp("tied") / "base"),
        ServingSection(engine="vllm", context=512, max_concurrent=16),
        environment=vllm_environment(),
        threads=1,
        adapters=lambda: served,
        variables={"VLLM_SERVER_DEV_MODE": "1"},
    ) as process:
        yield process


@pytest.fixture(params=["embedded", "vllm"])
def either(request: pytest.FixtureRequest) -> Supervised:
    """Each engine in turn."""
    found: Supervised = request.getfixturevalue(
        {"embedded": "engine", "vllm": "vllm"}[request.param]
    )
    return found
