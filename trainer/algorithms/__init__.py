"""Algorithms: each turns a dataset's rows, or graded rollouts, into Samples."""

from trainer.algorithms.contract import Algorithm
from trainer.algorithms.rejection import rejection
from trainer.algorithms.sft import sft

ALGORITHMS: dict[str, Algorithm] = {
    "rejection": Algorithm(rows=rejection),
    "sft": Algorithm(rows=sft),
}
