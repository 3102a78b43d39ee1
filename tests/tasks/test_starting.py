"""What a run starts from, and what is refused before anything is sampled."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from flywheel.errors import Refused, UsageError
from flywheel.lineage import Deployment
from serving.engines.reach import Access
from tasks.starting import has_room, served_whole, start_of, trainable
from tasks.turns import serving
from tests.tasks.sampling import write_project


def deployed(kind: str | None) -> Deployment:
    base = Deployment(name="p-v0", project="p", version=0, base_model="/models/tiny")
    if kind == "adapter":
        return replace(base, name="p-v1", version=1, adapter="runs/a/adapter")
    if kind == "full":
        return replace(base, name="p-v2", version=2, adapter="runs/b/model", kind="full")
    return base


def test_a_run_starts_from_the_base_model_its_adapter_or_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path))
    base = Path("/models/tiny")
    assert start_of(deployed(None)) == (base, None)
    assert start_of(deployed("adapter")) == (base, tmp_path / "runs/a/adapter")
    assert start_of(deployed("full")) == (tmp_path / "runs/b/model", None)


def test_projects_with_copies_of_one_base_are_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    for name in ("a", "b"):
        (write_project(tmp_path / name, name, "").folder / "base").unlink()
        (tmp_path / name / "base").mkdir()
    with (
        pytest.raises(UsageError, match=r"copies of one model.*name one folder"),
        serving(str(tmp_path / "a"), str(tmp_path / "b")),
    ):
        raise AssertionError("served two base models")


def test_no_adapter_is_trained_on_a_whole_model_and_no_whole_model_tried_before_vllm(
    tmp_path: Path,
) -> None:
    adapters = write_project(tmp_path / "a", "p", "")
    whole = write_project(tmp_path / "w", "p", 'method = "full"\n')
    for champion in (deployed(None), deployed("adapter")):
        trainable(adapters, champion)
        trainable(whole, champion)
    trainable(whole, deployed("full"))
    with pytest.raises(Refused, match=r'p-v2 is a whole model.*method = "full".*roll back'):
        trainable(adapters, deployed("full"))
    served_whole("embedded")
    with pytest.raises(Refused, match=r"a vLLM holds one.*flywheel train"):
        served_whole("vllm")


def test_no_adapter_is_trained_that_the_engine_has_no_room_for() -> None:
    has_room(Access(), 4096)
    has_room(Access(kind="vllm", max_rank=16), 16)
    with pytest.raises(Refused, match=r"rank is 32 .* room for 16: .*max_rank in \[serving\]"):
        has_room(Access(kind="vllm", max_rank=16), 32)
