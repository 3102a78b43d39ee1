"""`python -m trainer JOB.json`: a training job in a process of its own. Prints its result."""

import logging
import sys
from pathlib import Path

import msgspec

from flywheel.children import follow_parent
from flywheel.errors import FlywheelError, UsageError
from flywheel.settings import load, quiet_dependencies


def main(arguments: list[str]) -> int:
    follow_parent()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    quiet_dependencies(load().at())
    try:
        if len(arguments) != 1:
            raise UsageError("usage: python -m trainer JOB.json")
        from trainer.job import run

        print(msgspec.json.encode(run(Path(arguments[0]))).decode(), flush=True)
    except FlywheelError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
