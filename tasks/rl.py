"""Training while it samples: rollouts of one engine, one trainer's process, and what is between.

Enter a run, with its dataset of problems; leaves, in its folder, what the trainer leaves of any
run. Several in one process share the engine fairly. Invariant: all that decides how far a run is
lies in files (groups that ended, batches that were put, versions that were written), so that the
same call after a kill goes on.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.lineage import Deployment
from flywheel.project import Project
from tasks.judges import judge_of
from tasks.player import Rules, players
from tasks.rl_buffer import Buffer
from tasks.rl_engines import further
from tasks.rl_learner import SpoolLearner
from tasks.rl_loop import Shared, shared
from tasks.rl_problems import environments_of, mixture_of, problems_in
from tasks.rl_seat import engine_of, forget_earlier, seat_of
from tasks.rl_trainer import TrainerProcess
from tasks.teachers import teaching
from tasks.turns import home
from trainer import spool

if TYPE_CHECKING:
    from environments.define import Environment
    from serving.interception import Served
    from serving.publishing import Seat
    from trainer.algorithms.contract import Context, Group, Prepared
    from trainer.orchestrator.source import Source
    from trainer.render import Rendering

ENGINE = "engine"
"""The name of the player before the home's engine; others' are their URLs."""
FOLLOW_S = 1.0
"""How often the trainer's metrics are looked at."""


class Online(NamedTuple):
    """A run that samples, ready to be played."""

    project: Project
    run_id: str
    start: Deployment
    """Whose weights it starts from."""
    dataset: str
    """Id of its problems."""
    job: Path
    """The trainer's; its folder is the run's."""
    follow: Callable[[], None]
    """Sends on what the trainer wrote of its steps."""

    @property
    def folder(self) -> Path:
        return self.job.parent

    @property
    def name(self) -> str:
        """What its versions are called by, in the engine and in records."""
        return f"{self.project.name}-{self.run_id[:12]}"


def train_online(run: Online) -> None:
    """Plays, grades and trains until the run's last step, beside the process's other runs.

    Raises:
        FlywheelError: it cannot go on; what it has is kept.
    """
    with shared() as loop, engine_of(run.project, run.start) as (client, replace):
        forget_earlier(client, run.project.name, run.name)
        own = seat_of(run.project, run.start, run.name, client, replace)
        with further(run.project, run.start, run.name, own) as others:
            loop.run(_trained(run, {ENGINE: own, **others}, loop))


async def _trained(run: Online, seats: "Mapping[str, tuple[Served, Seat]]", loop: Shared) -> None:
    """`seats`: by the players' names."""
    from serving.publishing import WeightPublisher
    from trainer.algorithms.contract import Context
    from trainer.orchestrator.driver import orchestrate

    rl, source = run.project.train.rl, source_of(run)
    environments = environments_of(run.project)
    publisher = WeightPublisher(run.name, [seat for _, seat in seats.values()])
    playing = players(
        environments,
        seats,
        publisher,
        rules_of(run),
        folder=run.folder / "runtimes",
        put=_put(),
    )
    rendering, own = rendering_of(run), seats[ENGINE][1]
    with teaching(run.project, own.client, own.policies, rendering) as teacher:
        context = Context(rendering, run.project.train, teacher)
        async with (
            publisher,
            TrainerProcess(run.job) as trainer,
            following(run.follow),
            playing as workers,
        ):
            learner = learner_of(run, environments, source, trainer, context)
            await orchestrate(
                source,
                rl,
                workers,
                learner,
                Keeping(publisher, run.folder, rl.keep_versions),
                run=run.run_id,
                shared={
                    name: loop.slots(seat.client.url, rl.slots) for name, (_, seat) in seats.items()
                },
            )
            spool.end(run.folder, max(spool.versions(run.folder), default=0))
            await trainer.ended()


@contextlib.asynccontextmanager
async def following(follow: Callable[[], None]) -> AsyncIterator[None]:
    """Calls it again and again, in a thread, while the block lasts."""

    async def again() -> None:
        while True:
            await asyncio.sleep(FOLLOW_S)
            await asyncio.to_thread(follow)

    task = asyncio.create_task(again())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Keeping:
    """A publisher that lets the weights of old versions go when the newest is served."""

    def __init__(self, publisher: Any, folder: Path, versions: int) -> None:
        self._publisher, self._folder, self._versions = publisher, folder, versions

    async def publish(self, version: int, folder: Path) -> None:
        await self._publisher.publish(version, folder)
        for old in spool.versions(self._folder)[: -self._versions]:
            await asyncio.to_thread(spool.drop_version, self._folder, old)


def learner_of(
    run: Online,
    environments: "Mapping[str, Environment]",
    source: "Source",
    trainer: TrainerProcess,
    context: "Context",
) -> SpoolLearner:
    return SpoolLearner(
        home(),
        run.folder,
        environments,
        preparing(run, environments, context),
        trainer,
        judge=judge_of(run.project, home()),
        worth=source.learnt,
    )


def source_of(run: Online) -> "Source":
    """Which problem is visited next: the dataset's, by the mixture's weights; with a curriculum, by
    how often the start weights solved them."""
    from storage.graded import pass_rates
    from trainer.orchestrator.source import Pool, Source

    problems, train = problems_in(run.dataset), run.project.train
    known = pass_rates(home(), run.project.name, run.start.name) if train.curriculum else {}
    rates = {problem: rate for problem, (rate, _) in known.items()}
    entries = zip(environments_of(run.project), mixture_of(run.project), strict=True)
    return Source(
        run.run_id,
        [Pool(name, problems.get(name, []), entry.weight, rates) for name, entry in entries],
        seed=train.seed,
        curriculum=train.curriculum,
        journal=run.folder / "source.jsonl",
        given=1 + max((one.number for one in Buffer(run.folder).all()), default=-1),
    )


def rules_of(run: Online) -> Rules:
    return Rules(
        run.project.name,
        run.run_id,
        temperature=run.project.train.rl.temperature,
        max_tokens=run.project.rollouts.max_tokens,
        repeatable=run.project.train.rl.max_staleness == 0,
    )


def preparing(
    run: Online, environments: "Mapping[str, Environment]", context: "Context"
) -> "Callable[[Group], Prepared]":
    """The algorithm of a group's environment: its own in the mixture, else the run's.

    Raises:
        UsageError: one of them does not sample while it trains.
    """
    from trainer.algorithms.mixture import mixed, online

    entries = zip(environments, mixture_of(run.project), strict=True)
    names = {name: entry.algorithm or run.project.train.algorithm for name, entry in entries}
    for algorithm in names.values():
        online(algorithm)
    return lambda group: mixed([group], context, names)


def rendering_of(run: Online) -> "Rendering":
    from trainer.models import load_tokenizer
    from trainer.render import renderer_for

    return renderer_for(load_tokenizer(Path(run.start.base_model)))


def _put() -> Any:
    from storage.raw import RawStore

    return RawStore(home()).put
