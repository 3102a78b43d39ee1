"""`python -m trainer JOB.json`: a training job in processes of its own. Prints its result.

One process, or as many as the job's `train.machine` has; each of those is `python -m trainer --rank
JOB.json`.
"""

import ctypes
import logging
import os
import sys
from pathlib import Path

import msgspec

from flywheel.children import follow_parent
from flywheel.errors import FlywheelError, UsageError
from flywheel.settings import load, quiet_dependencies
from trainer.launch import launch, torchrun

M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""


def main(arguments: list[str]) -> int:
    try:
        path, rank = _asked(arguments)
        if not rank and (command := torchrun(path)):
            return launch(command)
        return _train(path)
    except FlywheelError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code


def _asked(arguments: list[str]) -> tuple[Path, bool]:
    match arguments:
        case ["--rank", path]:
            return Path(path), True
        case [path]:
            return Path(path), False
    raise UsageError("usage: python -m trainer JOB.json")


def _train(path: Path) -> int:
    follow_parent()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    quiet_dependencies(load().at())
    share_the_machine()
    from trainer.job import run

    print(msgspec.json.encode(run(path)).decode(), flush=True)
    return 0


def share_the_machine() -> None:
    """Must run before torch is imported.

    OpenMP's threads sleep while they wait: spinning, they cost five times the CPU time as soon as
    another process wants a core. Freed tensors go back to the system at once: left to itself, the
    C library's heap grows to half as much again as is in use.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # a GPU's products repeat with it
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, 1 << 20)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
