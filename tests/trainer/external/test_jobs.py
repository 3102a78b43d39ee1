import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flywheel.errors import CorruptFile, UsageError
from flywheel.records import Problem, say
from flywheel.section import EnvironmentSection
from flywheel.settings import load
from flywheel.train_section import TrainSection
from trainer.external.arrive import arrive
from trainer.external.contract import Handoff
from trainer.external.table import ENGINES
from trainer.external.verl import LOSSES, configuration
from trainer.losses.policy import POLICIES
from trainer.models import digest_of

ROOT = Path(__file__).resolve().parents[3]
SORTING = ROOT / "tests" / "sorting"
VERL = load().verl / "bin" / "python"
VERIFIERS = load().verifiers / "bin" / "python"
PROBLEMS = tuple(
    Problem(
        environment="sorting",
        messages=(say("user", digits),),
        answer=" ".join(sorted(digits.split())),
        text=digits,
    )
    for digits in ("3 1 2", "9 8", "4 4 1")
)


def handed(out: Path, train: dict[str, Any] | None = None, **changes: Any) -> Handoff:
    settings = {"algorithm": "grpo", "schedule": "constant", "rl": {"steps": 4}, **(train or {})}
    given = {
        "run_id": "run-1",
        "project": "sorting",
        "model": SORTING / "base",
        "adapter": None,
        "train": TrainSection.model_validate(settings),
        "max_tokens": 16,
        "context": 256,
        "environment": EnvironmentSection(path="environment.py:Sorting"),
        "folder": SORTING,
        "problems": PROBLEMS,
        "out": out,
        **changes,
    }
    return Handoff(**given)


def test_a_verl_job_is_its_rows_its_configuration_and_its_reward(tmp_path: Path) -> None:
    handoff = handed(tmp_path / "job", {"rl": {"steps": 4, "kl": 0.01, "baseline": "std"}})
    written = ENGINES["verl"]().write(handoff)
    assert all(path.is_file() for path in written.files)
    config = json.loads((tmp_path / "job" / "config.yaml").read_text())
    assert config["algorithm"]["norm_adv_by_std_in_grpo"] is True
    assert config["actor_rollout_ref"]["actor"]["kl_loss_coef"] == 0.01
    assert config["actor_rollout_ref"]["model"]["lora_rank"] == 8
    rows = pl.read_parquet(tmp_path / "job" / "train.parquet").to_dicts()
    assert [row["extra_info"]["problem"] for row in rows] == [one.id for one in PROBLEMS]
    assert rows[0]["prompt"] == [{"role": "user", "content": "3 1 2"}]
    assert "1 2 3" not in json.dumps(rows)


def test_the_reward_file_of_a_job_asks_our_environment(tmp_path: Path) -> None:
    ENGINES["verl"]().write(handed(tmp_path))
    asked = (
        "import flywheel_reward as r\n"
        f"for said in ('1 2 3', '3 1 2'):\n"
        f"    print(r.compute_score('sorting', said, '', {{'problem': '{PROBLEMS[0].id}'}}))\n"
        "try: r.compute_score('sorting', '1', '', {'problem': 'unheard of'})\n"
        "except r.Ungraded as error: print('ungraded', error)\n"
    )
    # An interpreter that sees nothing of ours: as an engine's own environment does.
    said = subprocess.run(
        [sys.executable, "-S", "-c", asked], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    lines = said.stdout.splitlines()
    assert lines[:2] == ["1.0", "0.0"], said.stderr
    assert lines[2].startswith("ungraded problem unheard of")


def test_a_prime_rl_job_is_its_toml_and_a_taskset(tmp_path: Path) -> None:
    written = ENGINES["prime-rl"]().write(handed(tmp_path, {"rl": {"baseline": "maxrl"}}, gpus=4))
    config = tomllib.loads((tmp_path / "rl.toml").read_text())
    assert config["orchestrator"]["algo"] == {"type": "max_rl"}
    assert config["orchestrator"]["batch_size"] == 64
    (source,) = config["orchestrator"]["train"]["source"]
    assert source["env"]["taskset"] == {"id": "flywheel_taskset"}
    assert config["deployment"]["num_train_gpus"] == config["deployment"]["num_infer_gpus"] == 2
    assert written.environment["PYTHONPATH"] == str(tmp_path)


@pytest.mark.parametrize(
    ("engine", "train", "words"),
    [
        ("verl", {"schedule": "linear"}, "schedule"),
        ("verl", {"rl": {"baseline": "maxrl"}}, "baseline"),
        ("verl", {"rl": {"loss": "reinforce", "max_staleness": 0}}, "loss"),
        ("verl", {"algorithm": "echo"}, "algorithm"),
        ("verl", {"ema": 0.9}, "train.ema"),
        ("verl", {"rl": {"length_penalty": 0.1, "call_penalty": 0.1}}, "call_penalty"),
        ("verl", {"curriculum": {}}, "curriculum"),
        ("prime-rl", {"rl": {"loss": "gspo"}}, "loss"),
        ("prime-rl", {"rl": {"kl": 0.1}}, "KL"),
        ("prime-rl", {"schedule": "cosine"}, "constant"),
        ("prime-rl", {"rl": {"length_penalty": 0.1}}, "length_penalty"),
        ("prime-rl", {"algorithm": "distill"}, "algorithm"),
    ],
)
def test_what_an_engine_has_no_equal_of_is_refused(
    tmp_path: Path, engine: str, train: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        ENGINES[engine]().write(handed(tmp_path, train))


@pytest.mark.parametrize("loss", LOSSES)
def test_verl_is_told_the_bounds_that_runs_here_have(tmp_path: Path, loss: str) -> None:
    for correction, bounds in (("tis", 2.0), ("icepop", "0.5_5.0"), ("sequence_mask", "0.5_2.0")):
        handoff = handed(tmp_path, {"rl": {"loss": loss, "correction": correction, "kl": 0.1}})
        told = configuration(handoff, tmp_path, tmp_path)
        actor, region = told["actor_rollout_ref"]["actor"], POLICIES[loss].region
        assert (actor["clip_ratio_low"], actor["clip_ratio_high"]) == region
        assert actor["kl_loss_type"] == "mse"
        assert bounds in told["algorithm"]["rollout_correction"].values()
    own = handed(tmp_path, {"rl": {"loss": loss, "clip_low": 0.1, "clip_high": 0.3}})
    actor = configuration(own, tmp_path, tmp_path)["actor_rollout_ref"]["actor"]
    assert (actor["clip_ratio_low"], actor["clip_ratio_high"]) == (0.1, 0.3)


ODD = "a \"quote\", 'one', ${oc.env:HOME}, \\, \x7f, \u2028 and\n\U0001f600\u00e9\r\t{{x}}"


def test_odd_words_reach_the_engines_as_they_are(tmp_path: Path) -> None:
    problem = Problem(environment="sorting", messages=(say("user", ODD),), answer=ODD, text=ODD)
    handoff = handed(tmp_path, project=ODD, problems=(problem,))
    ENGINES["verl"]().write(handoff)
    (row,) = pl.read_parquet(tmp_path / "train.parquet").to_dicts()
    assert row["prompt"] == [{"role": "user", "content": ODD}] and row["data_source"] == ODD
    ENGINES["prime-rl"]().write(handoff)
    (source,) = tomllib.loads((tmp_path / "rl.toml").read_text("utf-8"))["orchestrator"]["train"][
        "source"
    ]
    assert source["name"] == ODD
    (told,) = json.loads((tmp_path / "flywheel_taskset" / "problems.json").read_text("utf-8"))
    assert told["prompt"] == row["prompt"]


def test_an_answer_that_was_not_waited_for_is_not_the_next_ones(tmp_path: Path) -> None:
    """As when the engine's own time limit ends the question."""
    ENGINES["verl"]().write(handed(tmp_path))
    name = PROBLEMS[0].id
    asked = (
        "import flywheel_reward as r, signal\n"
        "class Late(Exception): pass\n"
        "def late(*_): raise Late\n"
        "signal.signal(signal.SIGALRM, late)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        f"try: r.CHILD.ask('{name}', '1 2 3')\n"
        "except Late: print('late')\n"
        f"print(r.CHILD.ask('{name}', '3 1 2'), r.CHILD.ask('{name}', '1 2 3'))\n"
    )
    said = subprocess.run(
        [sys.executable, "-S", "-c", asked], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert said.stdout.splitlines() == ["late", "0.0 1.0"], said.stderr


def test_metrics_and_weights_come_back(tmp_path: Path) -> None:
    verl = ENGINES["verl"]()
    (tmp_path / "verl.jsonl").write_text(
        '{"step": 1, "data": {"critic/score/mean": 0.5, "timing_s/gen": 2}}\n{"step": 2, "da'
    )
    assert list(verl.metrics(tmp_path)) == [(1, {"reward": 0.5, "verl/timing_s/gen": 2.0})]
    with pytest.raises(CorruptFile, match="no weights"):
        verl.weights(tmp_path)
    adapter = tmp_path / "weights" / "lora_adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_model.safetensors").touch()
    assert verl.weights(tmp_path) == adapter
    prime = ENGINES["prime-rl"]()
    (tmp_path / "outputs" / "run_default").mkdir(parents=True)
    (tmp_path / "outputs" / "metrics.jsonl").write_text('{"step": 1, "entropy/mean": 0.25}\n')
    (tmp_path / "outputs" / "run_default" / "metrics.jsonl").write_text(
        '{"step": 1, "reward/mean": 0.5}\n'
    )
    assert list(prime.metrics(tmp_path)) == [(1, {"entropy": 0.25, "reward": 0.5})]


CHECKED = """
import sys
from hydra import compose, initialize_config_dir
from verl.utils.config import omega_conf_to_dataclass, validate_config
with initialize_config_dir(sys.argv[1], version_base=None):
    config = compose("config")
parts = config.actor_rollout_ref
if not parts.model.lora_rank:
    validate_config(config, use_reference_policy=True, use_critic=False)
else:  # asks an installed vLLM for the ranks that it takes; all else of it is this
    omega_conf_to_dataclass(parts.actor).validate(1, config.data.train_batch_size, parts.model)
rollout = omega_conf_to_dataclass(parts.rollout)
correction = omega_conf_to_dataclass(config.algorithm).rollout_correction
print(rollout.n, correction["rollout_is_threshold"], parts.model.lora_rank)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rank"), [("full", 0), ("lora", 8)])
@pytest.mark.skipif(not VERL.is_file(), reason="no .venv-verl: `make install-verl` brings it")
def test_verls_own_code_takes_the_configuration(tmp_path: Path, method: str, rank: int) -> None:
    train = {"method": method, "rl": {"correction": "icepop", "kl": 0.01}}
    written = ENGINES["verl"]().write(handed(tmp_path, train))
    said = subprocess.run(
        [VERL, "-c", CHECKED, str(tmp_path)], capture_output=True, text=True, timeout=600,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **written.environment},
    )  # fmt: skip
    assert said.stdout.splitlines()[-1:] == [f"8 0.5_5.0 {rank}"], said.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not VERIFIERS.is_file(), reason="no .venv-verifiers: `make install-verifiers` brings it"
)
def test_the_verifiers_package_takes_the_taskset(tmp_path: Path) -> None:
    written = ENGINES["prime-rl"]().write(handed(tmp_path))
    checked = (
        "import asyncio, types\n"
        "import verifiers.v1 as vf\n"
        "from verifiers.v1.configs.taskset import TasksetConfig\n"
        "from flywheel_taskset import FlywheelTaskset\n"
        "tasks = list(FlywheelTaskset(TasksetConfig(id='flywheel_taskset')))\n"
        "said = types.SimpleNamespace(last_reply='1 2 3')\n"
        "print(len(tasks), asyncio.run(tasks[0].flywheel(said)))\n"
    )
    said = subprocess.run(
        [VERIFIERS, "-c", checked], capture_output=True, text=True, timeout=600, cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **written.environment},
    )  # fmt: skip
    assert said.stdout.splitlines()[-1:] == ["3 1.0"], said.stderr


@pytest.mark.slow
def test_a_whole_model_arrives_untied_with_our_tokenizer_and_a_probe(tmp_path: Path) -> None:
    weights, out = tmp_path / "weights", tmp_path / "run"
    shutil.copytree(SORTING / "base", weights)
    text = json.loads((weights / "tokenizer_config.json").read_text())
    (weights / "tokenizer_config.json").write_text(json.dumps({**text, "chat_template": "theirs"}))
    handoff = handed(out / "verl", {"method": "full"})
    result = arrive(handoff, weights, out, seconds=1.0)
    assert (result.kind, result.adapter) == ("full", str(out / "model"))
    assert result.checkpoint_id == digest_of(out / "model")
    probe = json.loads((out / "probe.json").read_text())
    assert all(one["new"] == one["old"] for one in probe["entries"]), "nothing was trained"
    ours = (SORTING / "base" / "tokenizer_config.json").read_bytes()
    assert (out / "model" / "tokenizer_config.json").read_bytes() == ours
    with pytest.raises(UsageError, match="method = 'lora'"):
        arrive(handed(out / "verl"), weights, tmp_path / "other", seconds=1.0)
    with pytest.raises(UsageError, match="merge it"):
        ENGINES["verl"]().write(
            handed(tmp_path / "on", {"method": "full"}, adapter=tmp_path / "adapter")
        )
