"""Algorithms: each turns a dataset's rows, or graded rollouts, into Samples."""

from trainer.algorithms.contract import Algorithm
from trainer.algorithms.distill import distill
from trainer.algorithms.dpo import dpo
from trainer.algorithms.echo import echo
from trainer.algorithms.grpo import grpo
from trainer.algorithms.kto import kto
from trainer.algorithms.process_reward import process_reward
from trainer.algorithms.recorded import recorded
from trainer.algorithms.rejection import rejection
from trainer.algorithms.reward import reward
from trainer.algorithms.self_distill import self_distill
from trainer.algorithms.sft import sft
from trainer.algorithms.teacher import teacher

ALGORITHMS: dict[str, Algorithm] = {
    "distill": Algorithm(groups=distill),
    "dpo": Algorithm(rows=dpo),
    "echo": Algorithm(groups=echo),
    "grpo": Algorithm(groups=grpo),
    "kto": Algorithm(rows=kto),
    "process_reward": Algorithm(rows=process_reward),
    "recorded": Algorithm(rows=recorded),
    "rejection": Algorithm(rows=rejection),
    "reward": Algorithm(rows=reward),
    "self_distill": Algorithm(groups=self_distill),
    "sft": Algorithm(rows=sft),
    "teacher": Algorithm(rows=teacher),
}
