"""`python -m trainer.launch JOB.json`: a job's trainer, over the processes and nodes that its
`train.machine` names.

On several nodes the same command is started on each, with the job's folder and the base model's on
a disk that all share; whichever comes first waits for the others. The exit code is that of the
process that failed first.
"""

import os
import sys
from pathlib import Path

from flywheel.errors import FlywheelError, UsageError
from flywheel.ids import digest
from flywheel.project import MachineSection


def torchrun(job: Path, machine: MachineSection) -> list[str]:
    """Torchrun's arguments for this node.

    Raises:
        UsageError: several nodes, and no address at which they meet.
    """
    if machine.nodes == 1:
        meeting = ["--standalone"]
    elif machine.address is None:
        raise UsageError(
            f"train.machine: {machine.nodes} nodes need an address: host:port of the first one"
        )
    else:
        meeting = [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={machine.address}",
            f"--rdzv-id={digest(str(job))}",
        ]
    return [
        *meeting,
        f"--nnodes={machine.nodes}",
        f"--nproc-per-node={machine.processes}",
        "--max-restarts=0",
        "-m",
        "trainer",
        str(job),
    ]


def main(arguments: list[str]) -> int:
    try:
        if len(arguments) != 1:
            raise UsageError("usage: python -m trainer.launch JOB.json")
        from trainer.job import read_job, settings_of

        job = Path(arguments[0])
        given = torchrun(job, settings_of(read_job(job)).machine)
    except FlywheelError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code
    return _run(given)


def _run(given: list[str]) -> int:
    """The processes follow our parent themselves: they have our standard input."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args(given))
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        if failure.exitcode < 0:
            os.kill(os.getpid(), -failure.exitcode)
        return failure.exitcode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
