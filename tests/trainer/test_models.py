"""Loading bases and adapters: shared pages, exact switching, and errors that name what to do."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flywheel.errors import CorruptFile, MissingPart, UsageError
from trainer.models import (
    adapters,
    add_adapter,
    delete_adapter,
    digest_of,
    load_base,
    load_tokenizer,
    save_adapter,
    use_adapter,
)

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "sorting" / "base"
IDS = torch.tensor([[1, 300, 20, 30, 40]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "base"))


@pytest.fixture
def model() -> Any:
    return load_base(TINY, threads=1).model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(IDS).logits
        return result


def taught(model: Any, name: str, amount: float) -> None:
    """Adds an adapter that changes what the model says."""
    for parameter in add_adapter(model, name, rank=4, alpha=8, trainable=True):
        with torch.no_grad():
            parameter.add_(amount)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_base_is_float32_frozen_and_ready(model: Any) -> None:
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert not model.training and model.config._attn_implementation == "sdpa"
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()


def test_it_says_what_transformers_own_loading_says(model: Any) -> None:
    from transformers import LlamaForCausalLM

    assert torch.equal(logits(model), logits(LlamaForCausalLM.from_pretrained(TINY).eval()))


@pytest.mark.slow
def test_two_processes_share_the_pages_of_the_weights(folder: Path) -> None:
    code = (
        "import sys, torch; from pathlib import Path; from trainer.models import load_base\n"
        "base = load_base(Path(sys.argv[1]), threads=1)\n"
        "print(sum(float(p.sum()) for p in base.model.parameters()), flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": ROOT}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    try:
        assert len({child.stdout.readline() for child in children}) == 1
        for child in children:
            resident, share, dirty = _mapped(child.pid, folder / "model.safetensors")
            assert resident > 1200 and dirty == 0
            assert share <= resident * 0.55
    finally:
        for child in children:
            child.communicate()


def _mapped(pid: int, path: Path) -> tuple[int, int, int]:
    """KiB of `path`'s mapping in a process: resident, proportional, private and changed."""
    sizes, inside = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key = line.split(":")[0]
        if "-" in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and key in sizes:
            sizes[key] += int(line.split()[1])
    return sizes["Rss"], sizes["Pss"], sizes["Private_Dirty"]


def test_a_new_adapter_changes_nothing_and_is_the_same_for_the_same_seed(model: Any) -> None:
    before = logits(model)
    first = [p.clone() for p in add_adapter(model, "a", seed=3, trainable=True)]
    assert torch.equal(logits(model), before)
    torch.manual_seed(99)
    second = add_adapter(model, "b", seed=3)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert len(first) == 3 * 7 * 2


def test_making_an_adapter_leaves_the_random_state_alone(model: Any) -> None:
    torch.manual_seed(1)
    wanted = torch.rand(1)
    torch.manual_seed(1)
    add_adapter(model, "a", seed=3)
    assert torch.equal(torch.rand(1), wanted)


def test_adapters_lie_side_by_side_and_switch_exactly(model: Any) -> None:
    base = logits(model)
    taught(model, "one", 0.02)
    one = logits(model)
    taught(model, "two", -0.03)
    two = logits(model)
    assert not torch.equal(one, base) and not torch.equal(one, two)
    for name, wanted in (("one", one), (None, base), ("two", two), ("one", one), (None, base)):
        use_adapter(model, name)
        assert torch.equal(logits(model), wanted)


def test_switching_leaves_gradients_as_they_were(model: Any) -> None:
    trained = add_adapter(model, "trained", trainable=True)
    frozen = add_adapter(model, "frozen")
    use_adapter(model, None)
    use_adapter(model, "frozen")
    assert all(parameter.requires_grad for parameter in trained)
    assert not any(parameter.requires_grad for parameter in frozen)
    use_adapter(model, "trained")
    model(IDS).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in trained)
    assert model.lm_head.weight.grad is None


def test_a_saved_adapter_comes_back_the_same(model: Any, tmp_path: Path) -> None:
    taught(model, "project-v1", 0.02)
    wanted = logits(model)
    save_adapter(model, "project-v1", tmp_path / "adapter")
    fresh = load_base(TINY).model
    add_adapter(fresh, "project-v7", tmp_path / "adapter")
    assert torch.equal(logits(fresh), wanted)
    save_adapter(fresh, "project-v7", tmp_path / "again")
    assert digest_of(tmp_path / "again") == digest_of(tmp_path / "adapter")


def test_peft_itself_reads_what_is_saved(model: Any, tmp_path: Path) -> None:
    from peft import PeftModel
    from safetensors import safe_open

    taught(model, "x", 0.02)
    save_adapter(model, "x", tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(load_base(TINY).model, str(tmp_path / "adapter")).eval()
    assert torch.equal(logits(theirs), logits(model))
    with safe_open(str(tmp_path / "adapter" / "adapter_model.safetensors"), "pt") as file:
        assert all(key.startswith("base_model.model.model.layers.") for key in file.keys())  # noqa: SIM118
        assert not any(".x." in key or ".default." in key for key in file.keys())  # noqa: SIM118


def test_a_deleted_adapter_is_gone_and_the_base_answers(model: Any) -> None:
    base = logits(model)
    taught(model, "one", 0.02)
    one = logits(model)
    taught(model, "two", -0.03)
    delete_adapter(model, "one")
    assert adapters(model) == ["two"] and not torch.equal(logits(model), one)
    delete_adapter(model, "two")
    assert torch.equal(logits(model), base)
    assert not any("lora_" in name for name, _ in model.named_parameters())
    taught(model, "one", 0.02)
    assert torch.equal(logits(model), one)


def test_an_adapter_is_published_whole_and_never_overwritten(model: Any, tmp_path: Path) -> None:
    add_adapter(model, "a")
    save_adapter(model, "a", tmp_path / "adapter")
    with pytest.raises(UsageError, match="never overwritten"):
        save_adapter(model, "a", tmp_path / "adapter")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_names_that_cannot_be_are_refused(model: Any) -> None:
    add_adapter(model, "a")
    for name in ("a", "base", "a.b", ""):
        with pytest.raises(UsageError, match="name"):
            add_adapter(model, name)
    with pytest.raises(UsageError, match="no adapter 'z'"):
        use_adapter(model, "z")
    with pytest.raises(UsageError, match="no adapter 'z'"):
        delete_adapter(model, "z")


def test_a_missing_model_names_the_command_that_brings_it(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingPart, match=r"no-such is not there: `make model`"):
        load_base(tmp_path / "no-such")
    (folder / "model.safetensors").unlink()
    with pytest.raises(MissingPart, match=r"lacks model.safetensors: `make model`"):
        load_base(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MissingPart, match=r"tokenizer\.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize("kept", [0, 4, 400, 1_000_000])
def test_weights_cut_short_are_corrupt(folder: Path, kept: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(CorruptFile, match=r"model\.safetensors is not a whole"):
        load_base(folder)


def test_weights_of_another_shape_are_corrupt(folder: Path) -> None:
    change(folder / "config.json", hidden_size=48)
    with pytest.raises(CorruptFile, match=r"do not fit config\.json"):
        load_base(folder)


@pytest.mark.parametrize("layers", [2, 4])
def test_weights_too_many_or_too_few_are_corrupt(folder: Path, layers: int) -> None:
    change(folder / "config.json", num_hidden_layers=layers)
    with pytest.raises(CorruptFile, match="layers"):
        load_base(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "no-such"}'])
def test_a_config_that_cannot_be_used_is_corrupt(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CorruptFile, match=r"config\.json"):
        load_base(folder)


@pytest.mark.parametrize("text", ["", "{", '{"version": "1.0"}'])
def test_a_tokenizer_that_cannot_be_read_is_corrupt(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(CorruptFile, match="tokenizer"):
        load_tokenizer(folder)


def test_tied_weights_of_others_load_too(folder: Path, model: Any) -> None:
    from transformers import LlamaForCausalLM

    tied = LlamaForCausalLM.from_pretrained(TINY)
    tied.config.tie_word_embeddings = True
    tied.lm_head.weight = tied.model.embed_tokens.weight
    tied.save_pretrained(folder)
    loaded = load_base(folder).model
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert not loaded.lm_head.weight.requires_grad
    assert torch.equal(logits(loaded), logits(tied.eval()))


def test_a_base_in_sixteen_bits_is_widened(folder: Path) -> None:
    from transformers import LlamaForCausalLM

    LlamaForCausalLM.from_pretrained(TINY).to(torch.bfloat16).save_pretrained(folder)
    loaded = load_base(folder).model
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


@pytest.fixture
def adapter(model: Any, tmp_path: Path) -> Path:
    taught(model, "made", 0.02)
    save_adapter(model, "made", tmp_path / "adapter")
    delete_adapter(model, "made")
    return tmp_path / "adapter"


def _refused(model: Any, adapter: Path, match: str, error: type[Exception] = CorruptFile) -> None:
    taught(model, "serving", 0.01)
    before = logits(model)
    with pytest.raises(error, match=match):
        add_adapter(model, "bad", adapter)
    assert adapters(model) == ["serving"]
    use_adapter(model, "serving")
    assert torch.equal(logits(model), before)
    delete_adapter(model, "serving")


def test_an_adapter_cut_short_leaves_the_others_serving(model: Any, adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    _refused(model, adapter, "not a whole")
    weights.unlink()
    _refused(model, adapter, "adapter_model.safetensors", MissingPart)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"r": 16}, "the model needs"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_modules": ["no_such_module"]}, "does not fit"),
        ({"target_modules": ["q_proj"]}, "differ"),
        ({"peft_type": "IA3"}, "LoRA"),
        ({"peft_type": "no-such"}, "cannot be read"),
        ({"rank_pattern": {"q_proj": 128}}, "the model needs"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    model: Any, adapter: Path, values: dict[str, Any], match: str
) -> None:
    change(adapter / "adapter_config.json", **values)
    _refused(model, adapter, match)


def test_digests_follow_the_bytes_of_the_weights(folder: Path, tmp_path: Path) -> None:
    before = digest_of(folder)
    (folder / "notes.txt").write_text("x")
    assert digest_of(folder) == before == digest_of(TINY)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert digest_of(folder) != before
    with pytest.raises(MissingPart, match="no weights"):
        digest_of(tmp_path)


@pytest.mark.slow
def test_a_kill_while_saving_leaves_no_adapter(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from flywheel import durable; from trainer.models import *\n"
        "from trainer import models\n"
        "durable.publish = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "model = models.load_base(Path(sys.argv[1]), threads=1).model\n"
        "models.add_adapter(model, 'a'); models.save_adapter(model, 'a', Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(TINY), str(tmp_path / "adapter")]
    assert subprocess.run(command, cwd=ROOT).returncode == -signal.SIGKILL
    assert not (tmp_path / "adapter").exists()
