"""What is asked of an engine, of each of them: the embedded one and the real vLLM."""

import concurrent.futures
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import EngineError, Refused
from serving.engines.client import EngineClient
from serving.engines.supervised import Supervised
from trainer.models import add_adapter, load_base
from trainer.probe import ProbePair, probe_logprobs

pytestmark = pytest.mark.slow
PROMPT = [1, 40, 41]
ASKED = [{"role": "user", "content": "Sort: 3 1 2"}]


@pytest.fixture
def client(either: Supervised) -> Iterator[EngineClient]:
    with either.client(timeout_s=120) as client:
        yield client


def test_it_serves_the_base_and_the_adapters_it_was_told_of(client: EngineClient) -> None:
    assert client.ready() and client.models()[:3] == ["base", "tiny-v1", "tiny-v2"]


def test_logprobs_are_the_trainers(
    client: EngineClient, either: Supervised, adapters: dict[str, Path]
) -> None:
    model = load_base(either.model, threads=1).model
    pairs = [ProbePair((1, 30 + i, 31, 32), (40, 41 + i, 2)) for i in range(6)]
    for name in ("base", "tiny-v1", "tiny-v2"):
        if name != "base":
            add_adapter(model, name, adapters[name])
        expected = probe_logprobs(model, pairs)
        found = client.logprobs_of(name, [(p.prompt_ids, p.completion_ids) for p in pairs])
        for ours, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(ours, abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_of_what_is_sampled_are_those_it_was_drawn_with(
    client: EngineClient, either: Supervised, temperature: float
) -> None:
    import torch

    model = load_base(either.model, threads=1).model
    made = client.generate("base", PROMPT, max_tokens=6, temperature=temperature, seed=3)[0]
    with torch.inference_mode():
        logits = model(torch.tensor([[*PROMPT, *made.token_ids]])).logits[0]
    drawn_with = (logits / temperature).log_softmax(-1)[len(PROMPT) - 1 : -1]
    expected = [float(row[token]) for row, token in zip(drawn_with, made.token_ids, strict=True)]
    assert made.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_seed_repeats_and_choices_differ(client: EngineClient) -> None:
    asked: dict[str, Any] = {"max_tokens": 12, "n": 3, "seed": 5, "temperature": 1.0}
    first, again = (client.generate("tiny-v1", PROMPT, **asked) for _ in range(2))
    assert [one.token_ids for one in first] == [one.token_ids for one in again]
    assert len({one.token_ids for one in first}) > 1


def test_a_chat_answer_has_both_streams_and_is_counted(client: EngineClient) -> None:
    answer = client.chat(
        "base", ASKED, max_tokens=8, temperature=1.0, logprobs=True, return_token_ids=True,
        flywheel_gang={"id": "one", "size": 1}, n=1, seed=1,
    )  # fmt: skip
    choice, usage = answer["choices"][0], answer["usage"]
    assert usage["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert usage["completion_tokens"] == len(choice["token_ids"])
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert all(math.isfinite(one["logprob"]) for one in choice["logprobs"]["content"])


def test_adapters_answer_as_themselves_in_a_crowd(client: EngineClient) -> None:
    names = ["base", "tiny-v1", "tiny-v2"] * 6
    alone = {name: client.logprobs(name, PROMPT, [42, 43]) for name in set(names)}
    assert len({tuple(found) for found in alone.values()}) == 3
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        crowd = pool.map(lambda name: client.logprobs(name, PROMPT, [42, 43]), names)
        for name, found in zip(names, crowd, strict=True):
            assert found == pytest.approx(alone[name], abs=1e-4)


def test_scoring_a_batch_while_others_are_answered_harms_neither(client: EngineClient) -> None:
    """vLLM's CPU build ends its engine over this where the output head can be adapted."""
    pairs = [((1, 30 + n, 31), tuple(range(40, 41 + n))) for n in range(8)]
    alone = client.logprobs_of("tiny-v1", pairs)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = [
            pool.submit(client.generate, "tiny-v2", PROMPT, max_tokens=40, ignore_eos=True)
            for _ in range(5)
        ]
        crowd = pool.submit(client.logprobs_of, "tiny-v1", pairs).result()
        assert all(len(one.result()[0].token_ids) == 40 for one in answers)
    for one, other in zip(alone, crowd, strict=True):
        assert other == pytest.approx(one, abs=1e-4)


def test_many_long_prompts_with_seeds_are_answered_at_once(client: EngineClient) -> None:
    """vLLM's CPU build ends its engine over this where a prompt may be split over two steps."""
    prompts = [[1, *(30 + (n * 7 + k) % 12 for k in range(400))] for n in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(
            pool.map(
                lambda prompt: client.generate(
                    "tiny-v1", prompt, max_tokens=4, seed=sum(prompt), ignore_eos=True
                ),
                prompts,
            )
        )
    assert [len(one[0].token_ids) for one in answers] == [4] * 16


def test_a_name_keeps_its_weights(client: EngineClient, adapters: dict[str, Path]) -> None:
    client.load_adapter("tiny-v3", adapters["tiny-v3"])
    client.load_adapter("tiny-v3", adapters["tiny-v3"])
    with pytest.raises(Refused, match="new name"):
        client.load_adapter("tiny-v3", adapters["tiny-v1"])
    client.unload_adapter("tiny-v3")
    client.unload_adapter("tiny-v3")
    assert "tiny-v3" not in client.models()
    with pytest.raises(EngineError, match="tiny-v3"):
        client.generate("tiny-v3", [1, 2], max_tokens=1)


def test_files_changed_under_a_name_are_other_weights(
    client: EngineClient, adapters: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(adapters["tiny-v1"], tmp_path / "adapter")
    client.load_adapter("changed", folder)
    shutil.copy(adapters["tiny-v2"] / "adapter_model.safetensors", folder)
    with pytest.raises(Refused, match="new name"):
        client.load_adapter("changed", folder)
    client.unload_adapter("changed")


def _rank(folder: Path) -> None:
    _configure(folder, r=1024)


def _one_rank(folder: Path) -> None:
    _configure(folder, rank_pattern={"layers.0.self_attn.q_proj": 1024})


def _saves_modules(folder: Path) -> None:
    _configure(folder, modules_to_save=["lm_head"])


def _dora(folder: Path) -> None:
    _configure(folder, use_dora=True)


def _configure(folder: Path, **changed: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def _unknown_module(folder: Path) -> None:
    _rename(folder, "q_proj", "query")


def _output_head(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    path = folder / "adapter_model.safetensors"
    head = {
        "base_model.model.lm_head.lora_A.weight": torch.zeros(8, 96),
        "base_model.model.lm_head.lora_B.weight": torch.zeros(512, 8),
    }
    save_file({**load_file(path), **head}, path)


def _whole_head(folder: Path) -> None:
    _rename(folder, "model.layers.0.self_attn.q_proj.lora_A.weight", "lm_head.weight")


def _rename(folder: Path, before: str, after: str) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "adapter_model.safetensors"
    save_file({name.replace(before, after): one for name, one in load_file(path).items()}, path)


def _not_finite(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "adapter_model.safetensors"
    save_file({name: one * float("nan") for name, one in load_file(path).items()}, path)


def _cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def _no_config(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


DAMAGES = [
    _rank, _one_rank, _saves_modules, _dora, _unknown_module, _output_head, _whole_head,
    _not_finite, _cut, _no_config, _gone,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_adapter_that_cannot_be_served_is_refused_and_the_others_serve_on(
    client: EngineClient, adapters: dict[str, Path], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    expected = client.logprobs("tiny-v1", PROMPT, [42, 43])
    folder = shutil.copytree(adapters["tiny-v2"], tmp_path / "damaged")
    damage(folder)
    with pytest.raises(Refused, match="damaged"):
        client.load_adapter("damaged-v1", folder)
    assert "damaged-v1" not in client.models()
    assert client.logprobs("tiny-v1", PROMPT, [42, 43]) == pytest.approx(expected, abs=1e-5)
    client.load_adapter("damaged-v1", adapters["tiny-v2"])
    client.unload_adapter("damaged-v1")


@pytest.mark.parametrize("name", ["", "a.b", "base", "x" * 300, "new\nline"])
def test_a_name_that_cannot_be_one_is_refused(
    client: EngineClient, adapters: dict[str, Path], name: str
) -> None:
    with pytest.raises(Refused):
        client.load_adapter(name, adapters["tiny-v1"])
