"""What asynchronous GRPO makes of a real small model, in how long: SmolLM2-135M files a support
inbox's messages (`environments/shipped/support`), sampled held-out reward before and after.

    python benchmarks/rl_support.py [--seeds 0 1 2] [--steps 12] [--threads 1] [--json]

Each seed has other problems, another order and another adapter. The engine and the trainer are two
processes beside each other, a thread each. No peer trains so on a CPU; the goals are 0.75 held out
from about 0.40, every seed within 30 minutes on two cores.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flywheel import durable
from flywheel.home import Home
from flywheel.project import Project
from flywheel.records import Problem
from flywheel.settings import Settings, load, quiet_dependencies

if TYPE_CHECKING:
    from environments.define import Environment
    from tasks.rl import Online

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "support"
ENVIRONMENT = "environments.shipped.support.environment:Support"
TRAIN, HELDOUT = 64, 48
GOAL, MINUTES = 0.75, 30


class Seed(NamedTuple):
    seed: int
    before: float
    after: float
    low: float
    """95% interval of `after`, by Wilson."""
    high: float
    problems: int
    minutes: float
    """From the run's first rollout to its last weights."""
    staleness: float | None
    """The largest of all steps."""
    rollouts: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="a run each; default: %(default)s"
    )
    parser.add_argument(
        "--steps", type=int, default=12, help="optimizer steps of a run; default: %(default)s"
    )
    parser.add_argument(
        "--groups", type=int, default=8, help="problems a step; default: %(default)s"
    )
    parser.add_argument(
        "--size", type=int, default=8, help="answers a problem; default: %(default)s"
    )
    parser.add_argument(
        "--bound",
        type=int,
        default=8,
        help="versions that a trained token may lag behind; 0 = synchronous; default: %(default)s",
    )
    parser.add_argument(
        "--rate", type=float, default=5e-4, help="learning rate; default: %(default)s"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.7,
        help="rollouts and held-out answers are sampled at; default: %(default)s",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="torch's, of the engine and of the trainer each; default: %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    sys.path[0] = str(ROOT)  # a neighbour of this file is named as a package of ours
    os.environ["FLYWHEEL_THREADS"] = str(given.threads)
    done = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory(prefix="rl-support-") as place:
            os.environ["FLYWHEEL_HOME"] = place
            done.append(trained(Home(Path(place)), project_of(given, seed), seed))
        if not given.json:
            print(line(done[-1]), flush=True)
    if given.json:
        print(json.dumps({"seeds": [one._asdict() for one in done], "goal": GOAL}))


def line(one: Seed) -> str:
    met = one.after >= GOAL and one.minutes <= MINUTES
    return (
        f"seed {one.seed}: held out {one.before:.3f} -> {one.after:.3f} "
        f"({one.low:.3f} to {one.high:.3f}, {one.problems} problems) in {one.minutes:.1f} min, "
        f"{one.rollouts} rollouts, staleness at most {one.staleness}: "
        f"{'met' if met else 'not met'}"
    )


def project_of(given: argparse.Namespace, seed: int) -> Project:
    """The example, with an algorithm that samples while it trains."""
    content = tomllib.loads((EXAMPLE / "flywheel.toml").read_text(encoding="utf-8"))
    content["train"] |= {
        "algorithm": "grpo",
        "learning_rate": given.rate,
        "schedule": "constant",
        "warmup_steps": 2,
        "checkpoint_every": 8,
        "seed": seed,
        "rl": {
            "steps": given.steps,
            "groups_per_step": given.groups,
            "group_size": given.size,
            "max_staleness": given.bound,
            "baseline": "std",
            "temperature": given.temperature,
            "slots": 64,
        },
    }
    content["environment"] = {"path": ENVIRONMENT, "config": {"tasks": {"seed": seed}}}
    return Project.model_validate({**content, "folder": EXAMPLE})


def trained(home: Home, project: Project, seed: int) -> Seed:
    from environments.load import load_environment, problems_of
    from serving.server import ensure
    from tasks.rl import train_online

    quiet_dependencies(home)
    settings = load()
    section = project.environment
    environment = load_environment(section.path, project.folder, section.config)
    found = problems_of(environment).problems
    train = [one for one in found if one.split == "train"][:TRAIN]
    asked = [one for one in found if one.split == "heldout"][:HELDOUT]
    run = online(home, project, settings, train, seed)
    with ensure(home, project, settings):
        before = heldout(environment, asked, "base", None)
        started = time.monotonic()
        train_online(run)
        minutes = (time.monotonic() - started) / 60
        after = heldout(environment, asked, "learnt", run.folder / "adapter")
    steps = [json.loads(one) for one in (run.folder / "metrics.jsonl").read_text().splitlines()]
    low, high = wilson(sum(after), len(after))
    ages = [one["staleness_max"] for one in steps if one.get("staleness_max") is not None]
    return Seed(
        seed=seed,
        before=sum(before) / len(before),
        after=sum(after) / len(after),
        low=low,
        high=high,
        problems=len(asked),
        minutes=minutes,
        staleness=max(ages, default=None),
        rollouts=int(steps[-1].get("ended_rollouts") or 0),
    )


def online(
    home: Home, project: Project, settings: Settings, problems: list[Problem], seed: int
) -> "Online":
    """The run's dataset and job, without a turn around it."""
    from serving.routing import base_deployment
    from storage.committer import commit
    from storage.curate import curate
    from storage.datasets import write_dataset
    from storage.inbox import Inbox
    from tasks.rl import Online
    from tasks.rl_problems import rows_of
    from trainer.job import Job

    run_id = f"support-{seed}"
    made = curate(rows_of({"support": problems}), (), [], project.curate.near_duplicate)
    dataset = write_dataset(home, project.name, made, parents=(run_id,), rules=())
    Inbox(home).append([*problems, dataset])
    commit(home)
    base = str(settings.models / project.model.base)
    job = Job(
        run_id=run_id,
        base_model=base,
        online=True,
        train=project.train.model_dump(mode="json"),
        out=str(home.runs / run_id),
        seed=seed,
        threads=settings.threads,
    )
    path = home.runs / run_id / "job.json"
    durable.write(path, msgspec.json.encode(job))
    start = base_deployment(project.name, base)
    return Online(project, run_id, start, dataset.id, path, Followed(path.parent))


class Followed:
    """Tells each step as it is trained."""

    def __init__(self, folder: Path) -> None:
        self.metrics, self.told = folder / "metrics.jsonl", 0

    def __call__(self) -> None:
        if not self.metrics.exists():
            return
        lines = self.metrics.read_text().splitlines()
        for text in lines[self.told :]:
            step: dict[str, Any] = json.loads(text)
            shown = {name: step.get(name) for name in ("reward", "staleness_max", "seconds")}
            print(f"  step {step['step']}: {shown}", file=sys.stderr, flush=True)
        self.told = len(lines)


def heldout(
    environment: "Environment", asked: list[Problem], model: str, adapter: Path | None
) -> list[float]:
    """One sampled answer a problem, at the temperature that the example serves with."""
    from environments.grading import Item, grade_all, score
    from environments.rollouts import Sampler, sample
    from tasks.turns import engine

    with engine() as client:
        if adapter is not None:
            client.load_adapter(model, adapter)
        done = sample(
            environment,
            asked,
            Sampler(client.url, model),
            run_id="heldout",
            project="support",
            samples=1,
            temperature=0.7,
            max_tokens=32,
            origin="evaluation",
        )
    known = {one.id: one for one in asked}
    items = [Item(one.trace, known[str(one.trace.problem_id)]) for one in done]
    return [score(grades) or 0.0 for grades in grade_all(environment, items)]


def wilson(right: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Of a share (Wilson 1927)."""
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return middle - half, middle + half


if __name__ == "__main__":
    main()
