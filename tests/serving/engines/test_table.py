"""Which engine a project gets, and what can be said of an adapter without one."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.errors import CorruptFile, MissingPart, UsageError
from flywheel.home import Home
from flywheel.project import load_project
from flywheel.serving_section import ServingSection
from flywheel.settings import Secret, Settings
from serving import server
from serving.engines import vllm_command
from serving.engines.adapter_files import copied, linear_modules, misfit
from serving.engines.process import EngineProcess
from serving.engines.reach import Access, read_access, write_access
from serving.engines.remote import RemoteVllm
from serving.engines.table import ENGINES
from serving.engines.vllm import VllmProcess
from serving.engines.vllm_command import rank_room
from tests.serving.engines.test_contract import DAMAGES, _gone

TINY = Path(__file__).resolve().parents[2] / "sorting" / "base"


def made(name: str, serving: ServingSection, settings: Settings, home: Home) -> object:
    return ENGINES[name](home, TINY, serving, settings, dict)


def vllm_at(folder: Path) -> Settings:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    return Settings(vllm=folder)


def test_a_project_gets_the_engine_that_it_names(tmp_path: Path) -> None:
    home, settings = Home(tmp_path / "home"), vllm_at(tmp_path / "vllm")
    assert isinstance(made("embedded", ServingSection(), settings, home), EngineProcess)
    vllm = made("vllm", ServingSection(engine="vllm"), settings, home)
    assert isinstance(vllm, VllmProcess) and vllm.access.key
    url = ServingSection(engine="vllm", engine_url="http://host:8000/v1")
    remote = made("vllm", url, replace(settings, engine_key=Secret("k")), home)
    assert isinstance(remote, RemoteVllm)
    assert (remote.url, remote.access.key) == ("http://host:8000", "k")
    with pytest.raises(UsageError, match='engine = "vllm" goes with it'):
        made("embedded", ServingSection(engine_url="http://host:8000"), settings, home)
    with pytest.raises(MissingPart, match="make install-vllm"):
        made("vllm", ServingSection(), Settings(vllm=tmp_path / "none"), home)


def test_what_was_asked_for_goes_before_the_projects_word(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "flywheel.toml").write_text(
        f'name = "shop"\n[model]\nbase = "{TINY}"\n[environment]\npath = "e.py:E"\n'
    )
    project, home = load_project(folder), Home(tmp_path)
    settings = vllm_at(tmp_path / "vllm")
    assert isinstance(server._engine_of(home, [project], settings), EngineProcess)
    asked = replace(settings, engine="vllm", engine_key=Secret("secret"))
    assert isinstance(server._engine_of(home, [project], asked), VllmProcess)
    given = server._environment(home, asked)
    assert given["FLYWHEEL_ENGINE"] == "vllm" and given["FLYWHEEL_ENGINE_KEY"] == "secret"


def test_on_a_gpu_the_command_is_the_same_and_the_flags_are_not(tmp_path: Path) -> None:
    settings = vllm_at(tmp_path / "vllm")
    flags = {}
    for device in ("cpu", "gpu"):
        engine = made("vllm", ServingSection(device=device), settings, Home(tmp_path))
        assert isinstance(engine, VllmProcess)
        flags[device] = (
            vllm_command.flags(engine.model, engine._serving),
            engine._environment(),
        )
    assert "--enforce-eager" in flags["cpu"][0] and "--enforce-eager" not in flags["gpu"][0]
    assert "VLLM_CPU_KVCACHE_SPACE" in flags["cpu"][1]
    assert not any(name.startswith(("VLLM_CPU", "OMP")) for name in flags["gpu"][1])
    assert "processed_logprobs" in flags["gpu"][0]


def test_an_adapter_has_room_in_the_smallest_rank_of_vllms_that_it_fits() -> None:
    assert [rank_room(asked) for asked in (1, 2, 16, 17, 512)] == [1, 8, 16, 32, 512]
    with pytest.raises(UsageError, match="up to 512"):
        rank_room(513)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [one for one in DAMAGES if one is not _gone])
def test_what_vllm_could_not_serve_is_told_from_the_files(
    adapters: dict[str, Path], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(adapters["tiny-v1"], tmp_path / "damaged")
    assert misfit("shop-v1", folder, model=TINY, max_rank=8) is None
    damage(folder)
    try:
        why = misfit("shop-v1", folder, model=TINY, max_rank=8)
    except CorruptFile as error:
        why = str(error)
    assert why is not None and "damaged" in why


@pytest.mark.slow
def test_bfloat16_weights_that_are_no_numbers_are_told_too(
    adapters: dict[str, Path], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(adapters["tiny-v1"], tmp_path / "bf16")
    path = folder / "adapter_model.safetensors"
    tensors = {name: one.to(torch.bfloat16) for name, one in load_file(path).items()}
    save_file(tensors, path)
    assert misfit("v1", folder, model=TINY, max_rank=None) is None
    next(iter(tensors.values()))[0, 0] = float("inf")
    save_file(tensors, path)
    assert "not finite" in (misfit("v1", folder, model=TINY, max_rank=None) or "")


def test_adapters_are_made_of_the_linear_layers_before_the_head() -> None:
    assert linear_modules(TINY) == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_copy_is_named_by_its_content_and_stays_what_it_was(
    adapters: dict[str, Path], tmp_path: Path
) -> None:
    place = tmp_path / "copies"
    one = copied(adapters["tiny-v1"], place)
    assert one == copied(adapters["tiny-v1"], place) and len(list(place.iterdir())) == 1
    assert copied(adapters["tiny-v2"], place) != one
    moved = shutil.copytree(adapters["tiny-v1"], tmp_path / "moved")
    assert copied(moved, place) == one
    before = (one / "adapter_model.safetensors").read_bytes()
    shutil.copy(adapters["tiny-v2"] / "adapter_model.safetensors", moved)
    assert (one / "adapter_model.safetensors").read_bytes() == before
    config = json.loads((adapters["tiny-v1"] / "adapter_config.json").read_text())
    other = shutil.copytree(adapters["tiny-v1"], tmp_path / "other")
    (other / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 99}))
    assert copied(other, place) != one


def test_how_an_engine_is_reached_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert read_access(home) == Access()
    write_access(home, Access(kind="vllm", key="secret", max_rank=8))
    assert read_access(home).key == "secret"
    assert (home.engine / "access.json").stat().st_mode & 0o77 == 0
    (home.engine / "access.json").write_text(json.dumps({"kind": 3}))
    assert read_access(home) == Access()
