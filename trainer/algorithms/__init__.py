"""Algorithms: each turns a dataset's rows, or graded rollouts, into Samples."""

from trainer.algorithms.contract import Algorithm
from trainer.algorithms.dpo import dpo
from trainer.algorithms.grpo import grpo
from trainer.algorithms.kto import kto
from trainer.algorithms.process_reward import process_reward
from trainer.algorithms.rejection import rejection
from trainer.algorithms.reward import reward
from trainer.algorithms.sft import sft

ALGORITHMS: dict[str, Algorithm] = {
    "dpo": Algorithm(rows=dpo),
    "grpo": Algorithm(groups=grpo),
    "kto": Algorithm(rows=kto),
    "process_reward": Algorithm(rows=process_reward),
    "rejection": Algorithm(rows=rejection),
    "reward": Algorithm(rows=reward),
    "sft": Algorithm(rows=sft),
}
