"""Torchrun for a job's trainer: over the processes and nodes that its `train.machine` names.

On several nodes the same `python -m trainer JOB.json` is started on each, with the job's folder and
the base model's on a disk that all share; whichever comes first waits for the others.
"""

import os
from pathlib import Path
from typing import Any

from flywheel.errors import UsageError
from flywheel.ids import digest
from trainer.job import read_job, settings_of


def torchrun(path: Path) -> list[str] | None:
    """Torchrun's arguments for the job, on this node. None = the job asks for one process.

    Raises:
        UsageError: the job cannot be read, or has several nodes and no address where they meet.
    """
    job = read_job(path)
    machine = settings_of(job).machine
    if machine.engine != "torchrun":
        return None
    if machine.nodes == 1:
        meeting = ["--standalone"]
    elif machine.address is None:
        raise UsageError(
            f"train.machine: {machine.nodes} nodes need an address: host:port of the first one"
        )
    else:
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={machine.address}"]
        meeting.append(f"--rdzv-id={digest(job.run_id)}")
    return [
        *meeting,
        f"--nnodes={machine.nodes}",
        f"--nproc-per-node={machine.processes}",
        "--max-restarts=0",
        *("-m", "trainer", "--rank", str(path)),
    ]


def launch(arguments: list[str]) -> int:
    """Runs torchrun to its end; the exit code, or the signal, of the process that failed first.

    The processes follow our parent themselves: they have our standard input.
    """
    from torch.distributed import run as elastic
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    run: Any = elastic
    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        if failure.exitcode < 0:
            os.kill(os.getpid(), -failure.exitcode)
        return int(failure.exitcode)
    return 0
