"""Runs that sample while they train, on the tiny model, without a turn around them.

`python -m tests.tasks.sampling HOME FOLDER RUN [FOLDER RUN …]` trains what `prepared` wrote, in a
process that a test may kill.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from environments.load import load_environment
from flywheel import durable
from flywheel.home import Home
from flywheel.project import Project, load_project
from flywheel.records import Problem
from tests.flows.conftest import load_traffic


def write_project(folder: Path, name: str, train: str) -> Project:
    """The sorting project under another name, with these lines of [train]."""
    sorting = Path(__file__).resolve().parents[1] / "sorting"
    folder.mkdir(parents=True)
    (folder / "environment.py").write_bytes((sorting / "environment.py").read_bytes())
    (folder / "base").symlink_to(sorting / "base")
    text = (sorting / "flywheel.toml").read_text().replace('"sorting"', f'"{name}"', 1)
    before, gate, after = text.partition("[gate]")
    (folder / "flywheel.toml").write_text(before + train + gate + after)
    return load_project(folder)


def problems(count: int, seed: int = 0) -> list[Problem]:
    made = {}
    for ask in load_traffic().asks(2 * count, seed=seed):
        one = Problem(
            environment="sorting", messages=ask.messages, answer=ask.answer,
            text=ask.messages[-1].text,
        )  # fmt: skip
        made[one.id] = one
    return list(made.values())[:count]


def prepared(home: Home, project: Project, run_id: str, count: int = 64) -> Any:
    """The run's dataset and job; returns it ready to be trained."""
    from storage.committer import commit
    from storage.curate import curate
    from storage.datasets import write_dataset
    from storage.inbox import Inbox
    from tasks.rl_problems import rows_of
    from trainer.job import Job

    posed = problems(count)
    Inbox(home).append(posed, name=f"posed-{run_id}")
    made = curate(rows_of({"sorting": posed}), (), [], 0.7)
    dataset = write_dataset(home, project.name, made, parents=(run_id,), rules=())
    Inbox(home).append([dataset], name=f"dataset-{run_id}")
    commit(home)
    folder = home.runs / run_id
    job = Job(
        run_id=run_id,
        base_model=str(project.folder / "base"),
        online=True,
        train=project.train.model_dump(mode="json"),
        out=str(folder),
        threads=1,
    )
    durable.write(folder / "job.json", msgspec.json.encode(job))
    durable.write(folder / "dataset", dataset.id.encode())
    return online(home, project, run_id)


def online(home: Home, project: Project, run_id: str) -> Any:
    from serving.routing import base_deployment
    from tasks.rl import Online

    folder = home.runs / run_id
    return Online(
        project,
        run_id,
        base_deployment(project.name, str(project.folder / "base")),
        (folder / "dataset").read_text(),
        folder / "job.json",
        lambda: None,
    )


def answered(
    project: Project, model: str, asked: list[Problem], *, samples: int, temperature: float
) -> list[tuple[Any, list[Any]]]:
    """Sampled answers of one of the engine's models, each with its grades."""
    from environments.grading import Item, grade_all
    from environments.rollouts import Sampler, sample
    from tasks.turns import engine

    environment = load_environment("environment.py:Sorting", project.folder)
    with engine() as client:
        said = client.health()
        digests = {name: said.get(name) for name in ("template_digest", "tokenizer_digest")}
        done = sample(
            environment, asked, Sampler(client.url, model, **digests), run_id=f"of-{model}",
            project=project.name, samples=samples, temperature=temperature, max_tokens=16,
        )  # fmt: skip
    known = {one.id: one for one in asked}
    items = [Item(one.trace, known[str(one.trace.problem_id)]) for one in done]
    return list(zip((one.trace for one in done), grade_all(environment, items), strict=True))


def heldout(project: Project, model: str, *, temperature: float = 1.0, count: int = 96) -> float:
    """The mean reward of sampled answers to problems that no run has seen."""
    from environments.grading import score

    asked = problems(count, seed=99)
    given = answered(project, model, asked, samples=2, temperature=temperature)
    scores = [score(grades) or 0.0 for _, grades in given]
    return sum(scores) / len(scores)


def main(root: str, *runs: str) -> None:
    """Each of `runs` in a thread of its own, as tasks of Prefect are."""
    from flywheel.settings import load, quiet_dependencies
    from tasks.rl import train_online

    home = Home(Path(root))
    quiet_dependencies(home)
    load()
    given = [
        online(home, load_project(Path(folder)), run_id)
        for folder, run_id in zip(runs[::2], runs[1::2], strict=True)
    ]
    with ThreadPoolExecutor(len(given)) as pool:
        list(pool.map(train_online, given))


if __name__ == "__main__":
    main(*sys.argv[1:])
