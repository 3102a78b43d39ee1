"""Whole models beside the base model, by name, in one embedded engine; and why not in a vLLM."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flywheel.errors import Refused
from serving.engines.client import EngineClient
from serving.engines.reach import Access
from tests.serving.engines.conftest import TINY
from trainer.models import load_base
from trainer.probe import ProbePair, probe_logprobs

pytestmark = pytest.mark.slow

PAIR = ProbePair((5, 9, 11, 3), (7, 2, 8))


def a_model(folder: Path, seed: int) -> Path:
    """The tiny model with noise in every weight."""
    folder.mkdir()
    for path in TINY.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    random = torch.Generator().manual_seed(seed)
    noise = {
        name: one + torch.randn(one.shape, generator=random) * 0.02
        for name, one in load_file(TINY / "model.safetensors").items()
    }
    save_file(noise, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def said(client: EngineClient, model: str) -> list[float]:
    return client.logprobs(model, PAIR.prompt_ids, PAIR.completion_ids)


def test_a_whole_model_answers_under_its_name_beside_all_others(
    client: EngineClient, tmp_path: Path
) -> None:
    known = ("base", "tiny-v1")
    before = {name: said(client, name) for name in known}
    folders = {f"whole-v{n}": a_model(tmp_path / f"v{n}", n) for n in (1, 2)}
    for name, folder in folders.items():
        client.load_adapter(name, folder)
        client.load_adapter(name, folder)
        (own,) = probe_logprobs(load_base(folder, threads=1).model, [PAIR])
        assert said(client, name) == pytest.approx(own, abs=1e-4)
    with pytest.raises(Refused, match="new name"):
        client.load_adapter("whole-v1", folders["whole-v2"])

    def answer(name: str) -> list[int]:
        one = client.generate(name, PAIR.prompt_ids, max_tokens=24, temperature=0.0)[0]
        return list(one.token_ids)

    names = [*folders, *known]
    alone = [answer(name) for name in names]
    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(answer, names)) == alone, "side by side as alone"
    assert client.health()["model"] == str(TINY)
    for name in folders:
        client.unload_adapter(name)
    assert not set(folders) & set(client.models())
    assert {name: said(client, name) for name in known} == before


def test_a_model_of_other_tokens_or_no_numbers_is_refused_and_all_serves_on(
    client: EngineClient, tmp_path: Path
) -> None:
    broken = a_model(tmp_path / "broken", 3)
    tensors = load_file(broken / "model.safetensors")
    tensors["lm_head.weight"][0, 0] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Refused, match="not finite"):
        client.load_adapter("whole-v3", broken)
    other = a_model(tmp_path / "other", 4)
    text = json.loads((other / "tokenizer.json").read_text())
    text["added_tokens"][-1]["content"] = "<another>"
    (other / "tokenizer.json").write_text(json.dumps(text))
    with pytest.raises(Refused, match="another tokenizer"):
        client.load_adapter("whole-v4", other)
    vllm = EngineClient(client.url, access=Access(kind="vllm", model=str(TINY)))
    with vllm, pytest.raises(Refused, match="a vLLM holds one"):
        vllm.load_adapter("whole-v5", broken)
    assert "base" in client.models() and not any("whole" in name for name in client.models())
