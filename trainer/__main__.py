"""`python -m trainer JOB.json`: a training job in a process of its own. Prints its result."""

import ctypes
import logging
import os
import sys
from pathlib import Path

import msgspec

from flywheel.children import follow_parent
from flywheel.errors import FlywheelError, UsageError
from flywheel.settings import load, quiet_dependencies

M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""


def main(arguments: list[str]) -> int:
    follow_parent()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    quiet_dependencies(load().at())
    share_the_machine()
    try:
        if len(arguments) != 1:
            raise UsageError("usage: python -m trainer JOB.json")
        from trainer.job import run

        print(msgspec.json.encode(run(Path(arguments[0]))).decode(), flush=True)
    except FlywheelError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def share_the_machine() -> None:
    """Must run before torch is imported.

    OpenMP's threads sleep while they wait: spinning, they cost five times the CPU time as soon as
    another process wants a core. Freed tensors go back to the system at once: left to itself, the
    C library's heap grows to half as much again as is in use.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, 1 << 20)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
