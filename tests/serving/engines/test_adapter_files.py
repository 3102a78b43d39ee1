"""What an adapter's config and headers say, of files written by hand: no model is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import CorruptFile
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving.engines.adapter_files import copied, misfit
from serving.verify import check_files
from trainer.models import digest_of, digests_of

CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"],
    "base_model_name_or_path": None, "use_rslora": False,
}  # fmt: skip
Q = "base_model.model.model.layers.1.self_attn.q_proj"
SHAPES = {f"{Q}.lora_A.weight": [2, 3], f"{Q}.lora_B.weight": [3, 2]}


def written(folder: Path, shapes: dict[str, list[int]] | None = None, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    for name, shape in (shapes or SHAPES).items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    data = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(
        len(data).to_bytes(8, "little") + data + bytes(at)
    )
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changed}))
    return folder


def why(folder: Path) -> str | None:
    try:
        return misfit("shop-v1", folder, model=None, max_rank=8)
    except CorruptFile as error:
        return str(error)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"use_rslora": True},
        {"alpha_pattern": {"q_proj": 8}},
        {"r": 4, "rank_pattern": {"q_proj": 2}},
        {"layers_to_transform": [0, 1]},
        {"layers_to_transform": 1},
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|v)_proj"},
    ],
)
def test_a_config_of_its_weights_fits(tmp_path: Path, changed: dict[str, Any]) -> None:
    assert why(written(tmp_path, **changed)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"r": -1},
        {"r": 0},
        {"r": 1},
        {"r": "2"},
        {"lora_alpha": 0},
        {"lora_alpha": "16"},
        {"rank_pattern": {"q_proj": 3}},
        {"rank_pattern": {"q_proj": -2}},
        {"alpha_pattern": {"q_proj": -8}},
        {"layers_to_transform": [0]},
        {"layers_to_transform": 2},
        {"layer_replication": [[0, 2]]},
        {"target_modules": ["nothing"]},
        {"target_modules": "("},
        {"exclude_modules": ["q_proj"]},
        {"use_qalora": True},
    ],
)
def test_a_config_that_is_not_of_its_weights_is_told(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    assert str(tmp_path) in (why(written(tmp_path, **changed)) or "")


@pytest.mark.parametrize("shape", [[], [2], [2, 3, 1]])
@pytest.mark.parametrize("side", ["A", "B"])
def test_a_matrix_of_other_dimensions_is_told(tmp_path: Path, shape: list[int], side: str) -> None:
    folder = written(tmp_path, {**SHAPES, f"{Q}.lora_{side}.weight": shape})
    assert "dimensions" in (why(folder) or "")


@pytest.mark.parametrize(
    "changed",
    [{"lora_alpha": 5}, {"r": 3}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 9}},
     {"base_model_name_or_path": "another"}, {"target_modules": ["q_proj"]}],
)  # fmt: skip
def test_an_adapter_is_its_weights_and_its_config(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Checked where it is deployed, and in the path by which an engine tells what it loaded."""
    one, other = written(tmp_path / "one"), written(tmp_path / "other", **changed)
    assert digest_of(one) != digest_of(other)
    assert copied(one, tmp_path / "copies") != copied(other, tmp_path / "copies")
    assert copied(one, tmp_path / "copies").name == digest_of(one)
    home = Home(tmp_path / "home")
    deployed = Deployment(
        name="shop-v1", project="shop", version=1, base_model="tiny", adapter=str(one),
        checkpoint_id=digest_of(one),
    )  # fmt: skip
    check_files(home, deployed)
    written(one, **changed)
    with pytest.raises(CorruptFile, match="changed on disk"):
        check_files(home, deployed)
    (one / "adapter_config.json").write_text("{")
    with pytest.raises(CorruptFile, match="cannot be read"):
        check_files(home, deployed)


def test_what_does_not_change_the_model_changes_no_digest(tmp_path: Path) -> None:
    before = digest_of(written(tmp_path))
    same: dict[str, Any] = {"inference_mode": True, "lora_dropout": 0.1, "modules_to_save": None}
    assert digest_of(written(tmp_path, target_modules=["v_proj", "q_proj"], **same)) == before
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(dict(reversed(config.items()))))
    assert digest_of(tmp_path) == before


def test_checkpoints_of_older_homes_are_known_by_their_weights(tmp_path: Path) -> None:
    folder = written(tmp_path / "old")
    _, weights = digests_of(folder)
    (tmp_path / "bare").mkdir()
    (folder / "adapter_model.safetensors").rename(tmp_path / "bare" / "adapter_model.safetensors")
    assert digest_of(tmp_path / "bare") == weights, "as it was when configs did not count"
    written(folder)
    old = Deployment(
        name="shop-v1", project="shop", version=1, base_model="tiny", adapter=str(folder),
        checkpoint_id=weights,
    )  # fmt: skip
    check_files(Home(tmp_path / "home"), old)
