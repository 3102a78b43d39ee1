"""Sets of vLLM arguments: what their files may say, what becomes of it, and that vLLM takes it."""

import json
from pathlib import Path

import pytest

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.serving_section import ServingSection
from serving.engines.preset_check import commands_of, complaints
from serving.engines.presets import RESERVED, names, read_preset, role_of, spelled
from serving.engines.vllm import VllmProcess
from serving.engines.vllm_command import flags, variables
from tests.serving.engines.conftest import TINY, vllm_environment

GPU = ServingSection(engine="vllm", device="gpu", dtype="bfloat16")
SHIPPED = [
    "data-expert-parallel-fp8", "disaggregated-prefill", "kv-offload", "single-gpu",
    "tensor-parallel",
]  # fmt: skip


def write(home: Home, name: str, text: str) -> None:
    (home.root / "presets").mkdir(parents=True, exist_ok=True)
    (home.root / "presets" / f"{name}.toml").write_text(text)


def test_what_is_shipped_can_be_read_and_sets_nothing_of_ours(tmp_path: Path) -> None:
    assert names(Home(tmp_path)) == SHIPPED
    for name in SHIPPED:
        preset = read_preset(Home(tmp_path), name)
        assert preset.about and preset.gpus >= 1
        for role in preset.roles:
            assert not RESERVED & set(role.arguments)
            assert not set(role.environment) & {"VLLM_API_KEY", "HF_HUB_OFFLINE"}


def test_an_engine_is_started_with_its_presets_arguments_and_ours(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "bin").mkdir(parents=True)
    (tmp_path / "vllm" / "bin" / "python").touch()
    serving = GPU.model_copy(update={"preset": "tensor-parallel", "max_rank": 32})
    engine = VllmProcess(Home(tmp_path), TINY, serving, environment=tmp_path / "vllm")
    words = flags(TINY, serving, engine._role)
    for pair in (
        ("--tensor-parallel-size", "4"), ("--max-loras", "8"), ("--max-lora-rank", "32"),
        ("--logprobs-mode", "processed_logprobs"), ("--served-model-name", "base"),
    ):  # fmt: skip
        assert words[words.index(pair[0]) + 1] == pair[1] and words.count(pair[0]) == 1
    assert "--fully-sharded-loras" in words and "--enforce-eager" not in words


def test_a_homes_own_preset_goes_before_ours(tmp_path: Path) -> None:
    home = Home(tmp_path)
    text = 'about = "two"\ngpus = 2\n[arguments]\ntensor-parallel-size = 2\n'
    write(home, "tensor-parallel", text + '[environment]\nVLLM_X = "1"\nVLLM_API_KEY = "theirs"\n')
    role = role_of(home, GPU.model_copy(update={"preset": "tensor-parallel"}))
    assert role is not None and role.arguments == {"tensor-parallel-size": 2}
    set_here = variables(TINY, GPU, key="ours", threads=1, place=tmp_path, role=role)
    assert (set_here["VLLM_X"], set_here["VLLM_API_KEY"]) == ("1", "ours")
    assert names(home) == SHIPPED


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("about = 3", "about"),
        ('about = "x"\ngpus = 0', "gpus"),
        ('about = "x"\ngpus = 1\nargument = {}', "argument"),
        ('about = "x"\ngpus = 1\n[arguments]\nlogprobs-mode = "raw_logprobs"', "logprobs-mode"),
        ('about = "x"\ngpus = 1\n[arguments]\nno-enable-lora = true', "enable-lora"),
        ('about = "x"\ngpus = 1\n[arguments]\nmax_loras = 3', "with - between"),
        ('about = "x"\ngpus = 1\n[arguments]\n--max-loras = 3', "without leading dashes"),
        ('about = "x"\ngpus = 1\n[roles.a.arguments]\nport = 1', "port"),
        ("about = [", "nvalid value"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_path(
    tmp_path: Path, text: str, why: str
) -> None:
    write(Home(tmp_path), "mine", text)
    with pytest.raises(UsageError, match=f"presets/mine.toml cannot be used: .*{why}"):
        read_preset(Home(tmp_path), "mine")


def test_what_cannot_be_one_engine_here_is_refused_in_words(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for changed, why in (
        ({"preset": "none"}, "there are: data-expert"),
        ({"preset": "../presets/single-gpu"}, "no preset"),
        ({"preset": "single-gpu", "device": "cpu"}, "is for GPUs"),
        ({"preset": "disaggregated-prefill"}, r"several processes \(prefill and decode\)"),
        ({"preset": "data-expert-parallel-fp8", "dtype": "float32"}, 'dtype = "bfloat16"'),
    ):
        with pytest.raises(UsageError, match=why):
            role_of(home, GPU.model_copy(update=changed))
    assert role_of(home, GPU) is None


def test_values_are_spelled_as_vllms_command_line_has_them() -> None:
    found = spelled({"a": True, "b-c": False, "d": 0.5, "e": ["x", "y"], "f": {"k": [1]}})
    assert found == ["--a", "--no-b-c", "--d", "0.5", "--e", "x", "y", "--f", '{"k":[1]}']


@pytest.mark.slow
def test_vllms_own_parser_takes_each_and_says_what_it_does_not_take(tmp_path: Path) -> None:
    home = Home(tmp_path)
    head = 'about = "x"\ngpus = 1\n'
    write(home, "misspelt", head + "[arguments]\nmax-lora = 3\n")
    write(home, "no-choice", head + '[arguments]\nquantization = "nf3"\n')
    write(home, "no-number", head + '[arguments]\nmax-loras = "many"\n')
    write(home, "no-connector", head + '[arguments]\nkv-transfer-config = {kv_connector = "Y"}\n')
    write(home, "no-role", head + '[arguments]\nkv-transfer-config = {kv_role = "both"}\n')
    write(home, "no-variable", head + '[environment]\nVLLM_NO_SUCH = "1"\n')
    everyone = [
        (name, command)
        for name in names(home)
        for command in commands_of(home, read_preset(home, name), TINY, GPU)
    ]
    said = complaints(vllm_environment(), [command for _, command in everyone])
    refused = {name: why for (name, _), why in zip(everyone, said, strict=True) if why}
    words = {
        "misspelt": "max-lora", "no-choice": "nf3", "no-number": "many", "no-connector": "Y",
        "no-role": "kv_role", "no-variable": "VLLM_NO_SUCH",
    }  # fmt: skip
    assert refused.keys() == words.keys(), refused
    for name, word in words.items():
        assert word in refused[name], refused


def test_the_command_prints_what_is_started_without_a_key(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.commands.preset_ import command

    def said(*words: str) -> str:
        command.main([*words], standalone_mode=False)
        return capfd.readouterr().out

    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    assert [one["name"] for one in json.loads(said("--json"))["presets"]] == SHIPPED
    (tmp_path / "flywheel.toml").write_text(
        f'name = "shop"\n[model]\nbase = "{TINY}"\n[environment]\npath = "e.py:E"\n'
    )
    asked = ("disaggregated-prefill", str(tmp_path))
    found = json.loads(said(*asked, "--json"))
    assert [one["role"] for one in found["commands"]] == ["prefill", "decode"]
    ports = [one["command"][one["command"].index("--port") + 1] for one in found["commands"]]
    assert ports == ["8100", "8101"] and found["refused"] is None
    shown = said(*asked)
    assert 'export VLLM_API_KEY="$FLYWHEEL_ENGINE_KEY"' in shown
    assert "export CUDA_VISIBLE_DEVICES=1" in shown and "kv_consumer" in shown
