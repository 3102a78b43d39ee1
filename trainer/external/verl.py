"""verl 0.9 on Ray: the job as its configuration, rows and reward file; its metrics and weights.

config.yaml holds what differs from verl's own ppo_trainer.yaml and names it as its default, so that
verl's Hydra reads both and its own code checks them. Where verl has no equal of a setting of ours,
the job is refused rather than run as something else.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.load import load_environment
from flywheel.durable import write
from flywheel.errors import CorruptFile, UsageError
from flywheel.train_section import RLSection, TrainSection
from trainer.external.contract import (
    Handoff,
    Written,
    chat,
    only_answers,
    only_theirs,
    write_client,
    write_spec,
)
from trainer.losses.corrections import bounds_of
from trainer.losses.policy import region_of

ESTIMATORS = {"mean": "grpo", "std": "grpo", "leave_one_out": "rloo"}
LOSSES: dict[str, dict[str, Any]] = {
    "dppo": {"policy_loss": {"loss_mode": "dppo_tv"}},
    "grpo": {"policy_loss": {"loss_mode": "vanilla"}, "loss_agg_mode": "seq-mean-token-mean"},
    "dapo": {"policy_loss": {"loss_mode": "vanilla"}},
    "dr_grpo": {
        "policy_loss": {"loss_mode": "vanilla"},
        "loss_agg_mode": "seq-mean-token-sum-norm",
    },
    "gspo": {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "seq-mean-token-mean"},
    "cispo": {"policy_loss": {"loss_mode": "cispo"}},
}
METRICS = {
    "actor/loss": "loss",
    "actor/pg_loss": "loss/rl",
    "actor/entropy": "entropy",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "critic/score/mean": "reward",
    "response_length/mean": "length/mean",
    "response_length/clip_ratio": "truncated",
    "perf/throughput": "tokens_per_second",
    "perf/time_per_step": "seconds",
    "perf/mfu/actor": "flops_share",
    "perf/max_memory_allocated_gb": "memory_gb",
    "rollout_corr/kl": "mismatch_kl",
    "actor/pg_clipfrac": "clipped",
}
"""verl's name -> ours; others keep theirs under `verl/`."""


class Verl:
    def write(self, handoff: Handoff) -> Written:
        section = handoff.environment
        environment = load_environment(section.path, handoff.folder, section.config)
        only_answers("verl", environment)
        only_theirs("verl", handoff.train)
        handoff.out.mkdir(parents=True, exist_ok=True)
        client = write_client(handoff, write_spec(handoff))
        rows = _write_rows(handoff)
        config = handoff.out / "config.yaml"
        write(config, json.dumps(configuration(handoff, rows, client), indent=2).encode())
        last = handoff.out / "checkpoints" / f"global_step_{handoff.train.rl.steps}" / "actor"
        return Written(
            command=("python", "-m", "verl.trainer.main_ppo", "--config-path", str(handoff.out),
                     "--config-name", "config"),
            environment={
                "VERL_FILE_LOGGER_PATH": str(handoff.out / "verl.jsonl"),
                "HF_HUB_OFFLINE": "1",
                "RAY_USAGE_STATS_ENABLED": "0",
                "WANDB_MODE": "disabled",
            },
            files=(config, rows, client),
            collect=("python", "-m", "verl.model_merger", "merge", "--backend", "fsdp",
                     "--local_dir", str(last), "--target_dir", str(handoff.out / "weights")),
        )  # fmt: skip

    def metrics(self, out: Path) -> Iterator[tuple[int, dict[str, float]]]:
        path = out / "verl.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        for line in lines:
            try:
                said = json.loads(line)
                step, data = int(said["step"]), dict(said["data"])
            except (ValueError, KeyError, TypeError):
                continue  # half written, or not a step's
            numbers = {
                METRICS.get(name, f"verl/{name}"): float(value)
                for name, value in data.items()
                if isinstance(value, int | float)
            }
            yield step, numbers

    def weights(self, out: Path) -> Path:
        for folder, file in (
            (out / "weights" / "lora_adapter", "adapter_model.safetensors"),
            (out / "weights", "model.safetensors"),
            (out / "weights", "model.safetensors.index.json"),
        ):
            if (folder / file).is_file():
                return folder
        raise CorruptFile(f"verl left no weights in {out / 'weights'}: look at its log in {out}")


def configuration(handoff: Handoff, rows: Path, client: Path) -> dict[str, Any]:
    """What differs from verl's defaults.

    Raises:
        UsageError: a setting has no equal in verl.
    """
    train, rl = handoff.train, handoff.train.rl
    return {
        "defaults": ["ppo_trainer", "_self_"],
        "hydra": {"searchpath": ["pkg://verl.trainer.config"], "run": {"dir": str(handoff.out)},
                  "output_subdir": None},
        "data": {
            "train_files": str(rows),
            "val_files": str(rows),
            "train_batch_size": rl.groups_per_step,
            "max_prompt_length": handoff.context - handoff.max_tokens,
            "max_response_length": handoff.max_tokens,
            "filter_overlong_prompts": True,
            "truncation": "error",
            "seed": train.seed,
        },
        "actor_rollout_ref": {
            "model": _model(handoff),
            "actor": _actor(handoff),
            "ref": {"log_prob_micro_batch_size_per_gpu": 8},
            "rollout": {
                "name": "vllm",
                "n": rl.group_size,
                "temperature": rl.temperature,
                "tensor_model_parallel_size": 1,
                "calculate_log_probs": True,
                "log_prob_micro_batch_size_per_gpu": 8,
                "max_model_len": handoff.context,
                "seed": train.seed,
                # Adapters are synchronised into a loaded base model.
                **({"load_format": "safetensors"} if train.method == "lora" else {}),
            },
        },
        "algorithm": _algorithm(train),
        "reward": {"num_workers": 4,
                   "custom_reward_function": {"path": str(client), "name": "compute_score"}},
        "trainer": _trainer(handoff),
    }  # fmt: skip


def _write_rows(handoff: Handoff) -> Path:
    """verl's rows: the prompt, and which problem it is."""
    import polars as pl

    path = handoff.out / "train.parquet"
    rows = [
        {
            "data_source": handoff.project,
            "prompt": chat(problem),
            "ability": problem.slice,
            # The truth stays in our process: the reward names the problem, not its answer.
            "reward_model": {"style": "rule", "ground_truth": problem.id},
            "extra_info": {"problem": problem.id, "index": number},
        }
        for number, problem in enumerate(handoff.problems)
    ]
    temporary = path.with_suffix(".tmp")
    pl.DataFrame(rows).write_parquet(temporary)
    os.replace(temporary, path)
    return path


def _model(handoff: Handoff) -> dict[str, Any]:
    train = handoff.train
    if train.method == "full" and handoff.adapter is not None:
        raise UsageError(
            "verl trains all weights of a model as it lies in its folder, and the champion is an "
            "adapter: merge it into a base model of its own, or train here"
        )
    model: dict[str, Any] = {"path": str(handoff.model), "enable_gradient_checkpointing": True}
    if train.method == "lora":
        model |= {"lora_rank": train.rank, "lora_alpha": train.alpha,
                  "target_modules": "all-linear"}  # fmt: skip
        if handoff.adapter is not None:
            model["lora_adapter_path"] = str(handoff.adapter)
    return model


def _actor(handoff: Handoff) -> dict[str, Any]:
    train, rl = handoff.train, handoff.train.rl
    if rl.loss not in LOSSES:
        raise UsageError(
            f"verl has no loss {rl.loss!r}: set train.rl.loss to one of {', '.join(LOSSES)}"
        )
    actor: dict[str, Any] = {
        **LOSSES[rl.loss],
        "ppo_mini_batch_size": rl.groups_per_step,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": max(train.micro_tokens, handoff.context),
        "grad_clip": train.clip,
        "use_kl_loss": rl.kl > 0,
        "kl_loss_coef": rl.kl,
        "kl_loss_type": "mse",  # as `trainer.losses.reference_kl`
        "optim": {
            "lr": train.learning_rate,
            "lr_warmup_steps": train.warmup_steps,
            "lr_scheduler_type": _schedule(train),
            "weight_decay": train.weight_decay,
        },
        "checkpoint": {"save_contents": ["model", "optimizer", "extra"]},
    }
    # verl's own defaults are PPO's, whatever the loss: 0.2 would never clip GSPO's ratios.
    region = region_of(rl)
    return actor | {"clip_ratio_low": region.low, "clip_ratio_high": region.high}


def _schedule(train: TrainSection) -> str:
    if train.schedule == "linear":
        raise UsageError(
            'verl has no linear schedule: set train.schedule to "cosine" or "constant"'
        )
    return train.schedule


def _algorithm(train: TrainSection) -> dict[str, Any]:
    rl = train.rl
    if train.algorithm != "grpo":
        raise UsageError(f'verl runs algorithm = "grpo" only, not {train.algorithm!r}')
    if rl.baseline not in ESTIMATORS:
        raise UsageError(
            f"verl has no baseline {rl.baseline!r}: set train.rl.baseline to one of "
            f"{', '.join(ESTIMATORS)}"
        )
    return {
        "adv_estimator": ESTIMATORS[rl.baseline],
        "norm_adv_by_std_in_grpo": rl.baseline == "std",
        "rollout_correction": _correction(rl),
    }


def _correction(rl: RLSection) -> dict[str, Any]:
    low, high = bounds_of(rl)
    match rl.correction:
        case "tis":
            found: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": high}
        case "icepop":
            found = {"rollout_is": "token", "rollout_is_threshold": f"{low}_{high}"}
        case "sequence_mask":
            found = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": f"{low}_{high}"}
        case _:
            found = {}
    return {**found, "bypass_mode": rl.old_logprobs == "behaviour"}


def _trainer(handoff: Handoff) -> dict[str, Any]:
    train, rl = handoff.train, handoff.train.rl
    asynchronous = rl.max_staleness > 0
    return {
        "nnodes": handoff.nodes,
        "n_gpus_per_node": handoff.gpus,
        "total_training_steps": rl.steps,
        "total_epochs": rl.steps,
        "save_freq": train.checkpoint_every,
        "test_freq": -1,
        "val_before_train": False,
        "logger": ["console", "file"],
        "project_name": handoff.project,
        "experiment_name": handoff.run_id,
        "default_local_dir": str(handoff.out / "checkpoints"),
        "max_actor_ckpt_to_keep": 2,
        "v1": {
            "trainer_mode": "colocate_async" if asynchronous else "sync",
            "sampler": {
                "max_off_policy_threshold": max(1, rl.max_staleness),
                "max_off_policy_strategy": "wait" if rl.overaged == "wait" else "drop",
            },
        },
    }
