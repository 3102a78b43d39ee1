"""What an adapter's config and headers say, of files written by hand: no model is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import CorruptFile, Refused
from flywheel.home import Home
from flywheel.lineage import Deployment
from serving.engines.adapter_files import copied, misfit
from serving.engines.fitting import must_fit, path_for
from serving.engines.reach import Access
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


@pytest.mark.parametrize("kind", ["embedded", "vllm"])
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"r": 64}, "rank 64 and the engine makes room for 8: .*max_rank.*--max-lora-rank"),
        ({"rank_pattern": {"up_proj": 128}}, "rank 128 and the engine makes room for 8"),
        ({"modules_to_save": ["lm_head", "embed"]}, r"whole modules \(lm_head, embed\)"),
        ({"use_dora": True}, "only plain LoRA"),
    ],
)
def test_what_no_engine_of_ours_could_serve_is_told_before_it_is_registered(
    tmp_path: Path, kind: Any, changed: dict[str, Any], words: str
) -> None:
    access = Access(kind=kind, max_rank=8)
    must_fit(access, "shop-candidate", written(tmp_path / "good"))
    with pytest.raises(Refused, match=f"shop-candidate cannot be loaded: .*{words}"):
        must_fit(access, "shop-candidate", written(tmp_path / "bad", **changed))
    with pytest.raises(Refused, match="cannot be read"):
        must_fit(access, "shop-candidate", tmp_path / "gone")


def test_a_module_that_the_base_model_has_not_is_told_before_it_is_registered(
    tmp_path: Path,
) -> None:
    base = Path(__file__).resolve().parents[2] / "sorting" / "base"
    access = Access(kind="embedded", model=str(base))
    for module, why in (
        ("layers.0.self_attn.query", "has no module model.layers.0.self_attn.query"),
        ("layers.0.self_attn.q_proj", "is "),
    ):
        place = f"base_model.model.model.{module}"
        shapes = {f"{place}.lora_A.weight": [2, 3], f"{place}.lora_B.weight": [3, 2]}
        folder = written(tmp_path / module, shapes, target_modules=[module.rpartition(".")[2]])
        with pytest.raises(Refused, match=f"does not fit the base model: .*{why}"):
            must_fit(access, "shop-candidate", folder)
    head = {"base_model.model.lm_head.lora_A.weight": [2, 96],
            "base_model.model.lm_head.lora_B.weight": [512, 2]}  # fmt: skip
    with pytest.raises(Refused, match="lm_head cannot be adapted"):
        must_fit(access, "c", written(tmp_path / "head", head, target_modules=["lm_head"]))


def test_a_whole_model_is_for_the_engine_that_holds_several(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    must_fit(Access(kind="embedded"), "shop-candidate", tmp_path)
    with pytest.raises(Refused, match="a vLLM holds one"):
        must_fit(Access(kind="vllm"), "shop-candidate", tmp_path)


def test_only_a_vllm_of_ours_gets_copies(tmp_path: Path) -> None:
    folder = written(tmp_path / "one")
    assert path_for(Access(kind="embedded", copies="/nowhere"), "v1", folder) == str(folder)
    assert path_for(Access(kind="vllm"), "v1", folder) == str(folder)
    ours = Access(kind="vllm", copies=str(tmp_path / "copies"))
    assert path_for(ours, "v1", folder) == str(tmp_path / "copies" / digest_of(folder))
