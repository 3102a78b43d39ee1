"""TRL's side of benchmarks/packing.py and benchmarks/training.py, run by `.venv-trl`'s Python.

In: an order, one JSON line. Packing answers at once. A trainer is made, says that it is ready, and
for each further line trains one epoch and says what it took; one JSON line each.
"""

import json
import sys
import tempfile
import time
import warnings
from typing import Any


def main() -> None:
    warnings.simplefilter("ignore")
    order = json.loads(sys.stdin.readline())
    if order["what"] == "pack":
        say(pack(order["lengths"], order["budget"]))
        return
    import torch

    torch.set_num_threads(1)
    trainer = {"sft": sft, "grpo": grpo}[order["what"]](order)
    say({"ready": True})
    for _ in sys.stdin:
        watch = clock()
        trainer.add_callback(watch)
        trainer.train()
        trainer.remove_callback(watch)
        loss = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        say({"cpu_s": watch.cpu_s, "loss": loss[-1] if loss else None})


def say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def pack(lengths: list[int], budget: int) -> dict[str, Any]:
    from datasets import Dataset, disable_progress_bars
    from trl.data_utils import pack_dataset

    disable_progress_bars()
    rows = Dataset.from_dict({"input_ids": [[0] * length for length in lengths]})
    began = time.process_time()
    # In one batch of rows, as the best packing needs.
    packed = pack_dataset(rows, budget, "bfd", {"batch_size": len(lengths)})
    spent = time.process_time() - began
    return {"bins": packed["seq_lengths"][:], "cpu_s": spent}


def shared(order: dict[str, Any]) -> dict[str, Any]:
    """What both trainers are told."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "num_train_epochs": 1,
        "learning_rate": 1e-4,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "dataloader_pin_memory": False,
        "per_device_train_batch_size": order["rows_a_batch"],
        "gradient_accumulation_steps": order["batches_a_step"],
    }


def model_of(order: dict[str, Any]) -> tuple[Any, Any, Any]:
    import torch
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        order["model"], dtype=torch.float32, attn_implementation="sdpa"
    )
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    tokenizer = AutoTokenizer.from_pretrained(order["tokenizer"])
    return model, tokenizer, lora if order["method"] == "lora" else None


def sft(order: dict[str, Any]) -> Any:
    from datasets import Dataset, disable_progress_bars
    from trl import SFTConfig, SFTTrainer

    disable_progress_bars()
    labels = [
        [-100] * start + ids[start:]
        for ids, start in zip(order["ids"], order["starts"], strict=True)
    ]
    model, tokenizer, lora = model_of(order)
    config = SFTConfig(
        **shared(order),
        max_length=order["max_length"],
        packing=order["packing"],
        packing_strategy="bfd",
        shuffle_dataset=False,
    )
    return SFTTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_dict({"input_ids": order["ids"], "labels": labels}),
        processing_class=tokenizer,
        peft_config=lora,
    )


def grpo(order: dict[str, Any]) -> Any:
    """The rollouts are there already: a prompt is the number of its group."""
    from datasets import Dataset, disable_progress_bars
    from trl import GRPOConfig, GRPOTrainer

    disable_progress_bars()
    size = order["group_size"]
    groups = len(order["ids"]) // size

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        found: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        turn: dict[str, int] = {}
        for prompt in prompts:
            turn[prompt] = turn.get(prompt, -1) + 1
            at = int(prompt) * size + turn[prompt]
            ids, start = order["ids"][at], order["starts"][at]
            found["prompt_ids"].append(ids[:start])
            found["completion_ids"].append(ids[start:])
            found["logprobs"].append(order["logprobs"][at])
        return found

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(at % 2) for at in range(len(completions))]

    model, tokenizer, lora = model_of(order)
    given = shared(order)
    config = GRPOConfig(
        **given,
        num_generations=size,
        max_completion_length=max(map(len, order["ids"])),
        beta=0.0,
        temperature=1.0,
        shuffle_dataset=False,
    )
    return GRPOTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [str(at) for at in range(groups)]}),
        processing_class=tokenizer,
        reward_funcs=reward,
        rollout_func=rollouts,
        peft_config=lora,
    )


def clock() -> Any:
    """Tells the processor seconds from the first step's beginning to the last one's end."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        cpu_s = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.cpu_s -= time.process_time()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.cpu_s += time.process_time()

    return Clock()


if __name__ == "__main__":
    main()
