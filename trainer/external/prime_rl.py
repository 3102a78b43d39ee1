"""prime-rl: the job as its TOML and a taskset of the verifiers package; its metrics and weights.

The taskset is a package of one module in the job's folder. It carries the problems' prompts and
asks our environment for each answer's reward.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.load import load_environment
from flywheel.durable import write
from flywheel.errors import CorruptFile, UsageError
from flywheel.train_section import TrainSection
from trainer.external.contract import (
    Handoff,
    Written,
    chat,
    only_answers,
    only_theirs,
    write_client,
    write_spec,
)

TASKSET = "flywheel_taskset"
METRICS = {
    "loss/mean": "loss",
    "entropy/mean": "entropy",
    "mismatch_kl/mean": "mismatch_kl",
    "optim/grad_norm": "grad_norm",
    "optim/lr": "learning_rate",
    "reward/mean": "reward",
    "perf/throughput": "tokens_per_second",
    "perf/mfu": "flops_share",
    "time/step": "seconds",
}
"""prime-rl's name -> ours; others keep theirs under `prime-rl/`."""
_FILES = ("metrics.jsonl", "run_default/metrics.jsonl")
"""The trainer's and the orchestrator's, beneath its output folder."""


class PrimeRL:
    def write(self, handoff: Handoff) -> Written:
        section = handoff.environment
        only_answers("prime-rl", load_environment(section.path, handoff.folder, section.config))
        only_theirs("prime-rl", handoff.train)
        handoff.out.mkdir(parents=True, exist_ok=True)
        client = write_client(handoff, write_spec(handoff))
        taskset = _write_taskset(handoff)
        config = handoff.out / "rl.toml"
        write(config, toml(configuration(handoff)).encode())
        return Written(
            command=("rl", "@", str(config)),
            environment={"PYTHONPATH": str(handoff.out), "HF_HUB_OFFLINE": "1",
                         "DO_NOT_TRACK": "1"},
            files=(config, taskset, client),
        )  # fmt: skip

    def metrics(self, out: Path) -> Iterator[tuple[int, dict[str, float]]]:
        by_step: dict[int, dict[str, float]] = {}
        for name in _FILES:
            path = out / "outputs" / name
            lines = path.read_bytes().split(b"\n") if path.exists() else []
            for line in lines:
                try:
                    said = json.loads(line)
                    step = int(said["step"])
                except (ValueError, KeyError, TypeError):
                    continue
                numbers = by_step.setdefault(step, {})
                for key, value in said.items():
                    if key != "step" and isinstance(value, int | float):
                        numbers[METRICS.get(key, f"prime-rl/{key}")] = float(value)
        yield from sorted(by_step.items())

    def weights(self, out: Path) -> Path:
        steps = (out / "outputs" / "weights").glob("step_*")
        found = sorted(
            (each for each in steps if each.name[5:].isdecimal()),
            key=lambda each: int(each.name[5:]),
        )
        for folder in reversed(found):
            for inner in (folder / "lora_adapters", folder / "lora_adapter", folder):
                if any(inner.glob("*.safetensors")):
                    return inner
        raise CorruptFile(f"prime-rl left no weights in {out / 'outputs' / 'weights'}")


def configuration(handoff: Handoff) -> dict[str, Any]:
    """The run, as `rl @ rl.toml` reads it.

    Raises:
        UsageError: a setting has no equal in prime-rl.
    """
    _has_equals(handoff)
    train = handoff.train
    return {
        "max_steps": train.rl.steps,
        "seq_len": handoff.context,
        "output_dir": str(handoff.out / "outputs"),
        "model": {"name": str(handoff.model)},
        "ckpt": {"interval": train.checkpoint_every},
        "trainer": _trainer(train),
        "orchestrator": _orchestrator(handoff),
        "deployment": _deployment(handoff),
        "inference": {},
    }


def _has_equals(handoff: Handoff) -> None:
    train, rl = handoff.train, handoff.train.rl
    if handoff.adapter is not None:
        raise UsageError(
            "prime-rl starts adapters anew: merge the champion into the base model first, or take "
            "--engine verl"
        )
    if rl.loss != "dppo" or rl.correction != "none":
        raise UsageError('prime-rl has its own loss: set train.rl.loss = "dppo", no correction')
    if rl.kl or train.schedule != "constant":
        raise UsageError(
            "prime-rl's job has no KL to the start, and a constant learning rate: set "
            'train.rl.kl = 0 and train.schedule = "constant"'
        )


def _trainer(train: TrainSection) -> dict[str, Any]:
    lora = {"lora": {"rank": train.rank, "alpha": train.alpha}} if train.method == "lora" else {}
    bounds = (("dppo_mask_low", train.rl.clip_low), ("dppo_mask_high", train.rl.clip_high))
    clip = {name: value for name, value in bounds if value is not None}
    optimizer = {"lr": train.learning_rate, "weight_decay": train.weight_decay,
                 "max_norm": train.clip}  # fmt: skip
    return {"model": lora, "optim": optimizer, **({"loss": clip} if clip else {})}


def _orchestrator(handoff: Handoff) -> dict[str, Any]:
    rl = handoff.train.rl
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    source = {"name": handoff.project, "env": {"taskset": {"id": TASKSET}, "agent": agent}}
    sampling = {"max_completion_tokens": handoff.max_tokens, "temperature": rl.temperature}
    return {
        "batch_size": rl.groups_per_step * rl.group_size,
        "group_size": rl.group_size,
        "max_off_policy_steps": rl.max_staleness,
        "algo": {"type": _algorithm(handoff)},
        "train": {"sampling": sampling, "source": [source]},
    }


def _algorithm(handoff: Handoff) -> str:
    train = handoff.train
    kind = {"mean": "grpo", "maxrl": "max_rl"}.get(train.rl.baseline)
    if train.algorithm == "echo" and kind == "grpo":
        return "echo"
    if train.algorithm != "grpo" or kind is None:
        raise UsageError(
            'prime-rl runs algorithm = "grpo" with baseline "mean" or "maxrl", and "echo" with '
            f'"mean"; not {train.algorithm!r} with {train.rl.baseline!r}'
        )
    return kind


def _deployment(handoff: Handoff) -> dict[str, Any]:
    """Half of a node's GPUs train, the others sample."""
    if handoff.nodes > 1:
        raise UsageError("prime-rl goes beyond one node by SLURM: write [slurm] into its rl.toml")
    train = max(1, handoff.gpus // 2)
    return {
        "gpus_per_node": handoff.gpus,
        "num_train_gpus": train,
        "num_infer_gpus": max(1, handoff.gpus - train),
    }


def toml(table: dict[str, Any], path: str = "") -> str:
    """TOML of nested tables, strings, numbers, booleans and lists of tables."""
    plain = {key: each for key, each in table.items() if not _nested(each)}
    lines = [f"{key} = {_literal(each)}" for key, each in plain.items()]
    parts = ["\n".join(lines) + "\n"] if lines else []
    for key, each in table.items():
        where = f"{path}.{key}" if path else key
        if isinstance(each, dict):
            parts.append(f"[{where}]\n{toml(each, where)}")
        elif _nested(each):
            parts += [f"[[{where}]]\n{toml(one, where)}" for one in each]
    return "\n".join(parts)


def _literal(value: Any) -> str:
    """As JSON has it, but that TOML knows no halves of characters and no bare DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _nested(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and isinstance(value[0], dict))


def _write_taskset(handoff: Handoff) -> Path:
    package = handoff.out / TASKSET
    package.mkdir(exist_ok=True)
    source = Path(__file__).with_name("verifiers_taskset.py").read_text(encoding="utf-8")
    path = package / "__init__.py"
    write(path, source.encode())
    rows = [{"id": one.id, "prompt": chat(one)} for one in handoff.problems]
    write(package / "problems.json", json.dumps(rows).encode())
    return path
