"""Train: the dataset's rows become a candidate's weights, in a process of its own, logged live."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel import children, durable
from flywheel.failpoints import failpoint
from flywheel.lineage import Checkpoint, Run
from flywheel.records import Problem
from tasks.elsewhere import is_elsewhere, machine_of, train_elsewhere
from tasks.gates import Verdict
from tasks.rl import Online, train_online
from tasks.rl_dataset import write_trained
from tasks.rl_problems import is_online, problems_in
from tasks.rl_trainer import fault_of
from tasks.starting import start_of, trainable
from tasks.step import step
from tasks.turns import Turn, home, note, project_of, run_folder, settings

if TYPE_CHECKING:
    from tasks.tracking import Tracked


@step(minutes=24 * 60)
def train_candidate(turn: Turn, dataset: Verdict) -> dict[str, Any]:
    """Trains from the champion's weights; returns the candidate's checkpoint and its numbers.

    Raises:
        MissingPart: the base model is not there.
        FlywheelError: training stopped; its log's last lines say why.
    """
    with training(turn, dataset) as run:
        if is_elsewhere(project_of(turn)):
            train_elsewhere(turn, problems_of(dataset), run.tracked.follow)
        elif is_online(project_of(turn)):
            train_online(run.online)
        elif settings().trainer == "inline":
            from trainer.job import run as run_job

            run_job(run.job)
        else:
            run_process(run.job, run.tracked.follow)
    return run.found


class Training:
    """A run while it is trained; `found` is there when it was."""

    def __init__(self, turn: Turn, dataset: Verdict, tracked: "Tracked") -> None:
        self.turn, self.dataset, self.tracked = turn, dataset, tracked
        self.job = write_job(turn, dataset)
        self.found: dict[str, Any] = {}

    @property
    def online(self) -> Online:
        return Online(
            project_of(self.turn),
            self.turn.run_id,
            self.turn.start,
            self.dataset["dataset"],
            self.job,
            self.tracked.follow,
        )


@contextlib.contextmanager
def training(turn: Turn, dataset: Verdict) -> Iterator[Training]:
    """Around the training itself: its job and MLflow run before, its result, the run's record and
    the checkpoint's after."""
    from tasks.tracking import Tracked, log_rollouts

    started = time.monotonic()
    with Tracked.train(turn, dataset) as tracked:
        run = Training(turn, dataset, tracked)
        yield run
        tracked.follow()
        result = msgspec.json.decode((run.job.parent / "result.json").read_bytes())
        run.found = {
            **result,
            "adapter": home().relative(run.job.parent / Path(result["adapter"]).name),
            "seconds": round(time.monotonic() - started, 1),
            "algorithm": project_of(turn).train.algorithm,
            "mlflow_run_id": tracked.run_id,
        }
        tracked.finish(run.found)
    failpoint("turn.after_training")
    learnt = trained_on(turn, dataset)
    if learnt != dataset["dataset"]:
        log_rollouts(run.found["mlflow_run_id"], learnt)
    keep(turn, learnt, run.found)
    note(turn, "training", run.found)


def trained_on(turn: Turn, dataset: Verdict) -> str:
    """Id of what the weights were learnt from: the dataset, or the rollouts of its problems."""
    found: str = dataset["dataset"]
    project = project_of(turn)
    here = is_online(project) and not is_elsewhere(project)
    return write_trained(turn, found).id if here else found


def problems_of(dataset: Verdict) -> list[Problem]:
    """A dataset's problems, of all its environments."""
    return [one for some in problems_in(dataset["dataset"]).values() for one in some]


def write_job(turn: Turn, dataset: Verdict) -> Path:
    """The trainer's job file, in the run's folder.

    Raises:
        Refused: it cannot start from the champion.
    """
    from storage.queries import records
    from trainer.job import Job

    project, online = project_of(turn), is_online(project_of(turn))
    trainable(project, turn.start)
    start = start_of(turn.start)
    made = next(one for one in records(home(), "dataset") if one.id == dataset["dataset"])
    job = Job(
        run_id=turn.run_id,
        base_model=str(start.model),
        init_adapter=str(start.adapter) if start.adapter else None,
        rows=None if online else str(home().path(made.path) / "rows.parquet"),
        online=online,
        train=project.train.model_copy(update={"machine": machine_of(project)}).model_dump(
            mode="json"
        ),
        out=str(run_folder(turn)),
        seed=project.train.seed,
        threads=settings().threads,
    )
    path = run_folder(turn) / "job.json"
    durable.write(path, msgspec.json.encode(job))
    return path


def run_process(job: Path, follow: Any) -> None:
    """Runs the trainer as a child that cannot outlive us, and follows its metrics until it ends."""
    log = job.parent / "trainer.log"
    child = children.start("trainer", [str(job)], log=log)
    try:
        while child.poll() is None:
            follow()
            time.sleep(0.3)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
    if child.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise fault_of(child.returncode)(
            f"training of run {turn_name(job)} stopped ({child.returncode}):\n{tail}"
        )


def turn_name(job: Path) -> str:
    return job.parent.name


def keep(turn: Turn, dataset_id: str, found: dict[str, Any]) -> None:
    """Run and checkpoint go into the store: lineage from here on."""
    from storage.committer import commit
    from storage.inbox import Inbox

    project = project_of(turn)
    champion = turn.start
    run = Run(
        id=turn.run_id,
        project=turn.project,
        algorithm=found["algorithm"],
        base_model=champion.base_model,
        champion=turn.champion,
        snapshot=turn.snapshot,
        dataset_id=dataset_id,
        config=project.model_dump(mode="json", exclude={"folder"}),
        seconds=found["seconds"],
        mlflow_run_id=found["mlflow_run_id"],
    )
    checkpoint = Checkpoint(
        id=found["checkpoint_id"],
        run_id=turn.run_id,
        kind=found.get("kind", "adapter"),
        path=found["adapter"],
        steps=found["steps"],
        parent=champion.checkpoint_id,
    )
    Inbox(home()).append([run, checkpoint], name=f"run-{turn.run_id}")
    commit(home())
