"""Runs that sample while they train: they learn, are the same again, and survive being killed."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from flywheel.home import Home
from flywheel.project import Project
from tests.tasks.sampling import answered, heldout, prepared, problems, write_project
from trainer.spool import version_folder

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
algorithm = "grpo"
schedule = "constant"
checkpoint_every = 2
[train.rl]
steps = {steps}
groups_per_step = {groups}
group_size = {size}
max_staleness = {bound}
slots = 32
"""


@pytest.fixture
def home(sampling_home: Home) -> Home:
    return sampling_home


def killed(home: Home, *runs: Any, failpoint: str) -> None:
    """Trains in a process of its own, which dies at the failpoint."""
    words = [word for run in runs for word in (str(run.project.folder), run.run_id)]
    environment = {**os.environ, "FLYWHEEL_FAILPOINT": failpoint}
    words = ["-m", "tests.tasks.sampling", str(home.root), *words]
    assert subprocess.run([sys.executable, *words], cwd=ROOT, env=environment).returncode == -9


def trained(*runs: Any) -> None:
    """Each in a thread of its own, as tasks of Prefect are."""
    from tasks.rl import train_online

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(train_online, runs))


def kill_trainer_after(version: Path) -> threading.Thread:
    """Kills this process's trainer once it has written the version."""

    def wait() -> None:
        while not version.exists():
            time.sleep(0.02)
        for one in psutil.Process().children():
            if "trainer" in one.cmdline():
                one.kill()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def made(home: Home, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home.runs / run_id / "result.json").read_bytes())
    return found


def test_a_synchronous_run_killed_on_either_side_ends_with_the_same_bits(
    home: Home, tmp_path: Path
) -> None:
    train = TRAIN.format(steps=2, groups=2, size=4, bound=0)
    run_id = "0" * 8
    for place in ("whole", "killed"):
        project = write_project(tmp_path / place / "project", "same", train)
        run = prepared(home, project, run_id, count=8)
        if place == "killed":
            killed(home, run, failpoint="rl.after_batch")
            kill_trainer_after(version_folder(run.folder, 1))
        trained(run)
        run.folder.rename(tmp_path / place / "run")
    assert digest(tmp_path / "whole") == digest(tmp_path / "killed")


def digest(place: Path) -> str:
    return str(json.loads((place / "run" / "result.json").read_bytes())["checkpoint_id"])


@pytest.mark.soak
def test_two_killed_projects_on_one_engine_train_no_problem_twice_and_lose_none(
    home: Home, tmp_path: Path
) -> None:
    """With one project, to the same bits, above; what is taken and lost, on a virtual clock, in
    tests/trainer/orchestrator/test_driver.py."""
    from tasks.rl_buffer import Buffer

    train = TRAIN.format(steps=4, groups=2, size=4, bound=4)
    runs = [
        prepared(home, write_project(tmp_path / name, name, train), f"run-{name}")
        for name in ("ada", "bob")
    ]
    killed(home, *runs, failpoint="rl.before_batch")
    trained(*runs)
    for run in runs:
        assert made(home, run.run_id)["steps"] == 4
        buffer = Buffer(run.folder)
        groups, steps = buffer.all(), buffer.assigned()
        taken = Counter(visit for several in steps.values() for visit in several)
        assert sorted(steps) == [1, 2, 3, 4] and set(taken.values()) == {1}
        assert len({one.problem_id for one in groups}) == len(groups), "64 problems, one round"
        assert [one.number for one in groups] == list(range(len(groups))), "none is missing"
        assert all(one.visit in taken or one.refused for one in groups)


@pytest.mark.soak
def test_synchronous_training_raises_the_heldout_reward(home: Home, tmp_path: Path) -> None:
    """Seen first: that such a run learns, in tests/flows/test_rl.py; that a bound of 0 is the
    synchronous loop step for step, in tests/trainer/orchestrator/test_driver.py."""
    from tasks.turns import engine

    project = write_project(
        tmp_path / "learns", "learns", TRAIN.format(steps=16, groups=4, size=8, bound=0)
    )
    trained(prepared(home, project, "learns"))
    with engine() as client:
        client.load_adapter("learnt", home.runs / "learns" / "adapter")
    before, after = (heldout(project, model) for model in ("base", "learnt"))
    assert after > before + 0.15, (before, after)


def test_all_weights_learn_while_the_homes_engine_samples_from_each_version(
    home: Home, tmp_path: Path
) -> None:
    from tasks.turns import engine

    train = TRAIN.format(steps=2, groups=2, size=4, bound=2)
    train = train.replace("[train.rl]", 'method = "full"\n[train.rl]')
    project = write_project(tmp_path / "whole", "whole", train)
    trained(prepared(home, project, "whole", count=16))
    assert made(home, "whole")["kind"] == "full"
    with engine() as client:
        assert not [name for name in client.models() if name.startswith("whole-")]


def test_two_rounds_of_rejection_sampling_lift_the_heldout_reward_above_four_fifths(
    home: Home, tmp_path: Path
) -> None:
    from tasks.turns import engine
    from trainer.job import run

    project = write_project(tmp_path / "rejects", "rejects", "")
    before, start = heldout(project, "base", temperature=0.7), None
    for number in (1, 2):
        folder = tmp_path / f"round-{number}"
        job = rejection_job(project, folder, f"round-{number - 1}" if start else "base", start)
        start = run(job).adapter
        with engine() as client:
            client.load_adapter(f"round-{number}", Path(start))
    after = heldout(project, "round-2", temperature=0.7)
    assert before < 0.4 and after > 0.8, (before, after)


def rejection_job(project: Project, folder: Path, model: str, start: str | None) -> Path:
    """One right answer a problem, of those that the model samples, as a job of the trainer."""
    from environments.grading import score
    from flywheel.row_files import write_rows
    from flywheel.rows import TrainingRow
    from trainer.job import Job

    rows: dict[str, TrainingRow] = {}
    for trace, grades in answered(project, model, problems(64), samples=4, temperature=0.7):
        call = trace.spans[0].call
        if score(grades) == 1.0:
            rows[trace.problem_id] = TrainingRow(
                trace_id=trace.id, span_id="answer", messages=call.input, reward=1.0,
                completion=call.choices[0].message, tokens=call.choices[0].tokens,
                finish_reason="stop", problem_id=trace.problem_id,
            )  # fmt: skip
    folder.mkdir()
    write_rows(folder / "rows.parquet", list(rows.values()))
    job = Job(
        run_id=folder.name,
        base_model=str(project.folder / "base"),
        init_adapter=start,
        rows=str(folder / "rows.parquet"),
        train=project.train.model_dump(mode="json"),
        out=str(folder),
        threads=1,
    )
    (folder / "job.json").write_bytes(msgspec.json.encode(job))
    return folder / "job.json"
