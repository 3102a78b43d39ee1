import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel import failpoints, progress
from flywheel.errors import Busy, FlywheelError, MissingPart, UsageError
from flywheel.row_files import read_rows, write_rows
from trainer.job import Job, JobResult, _identities, read_job, run, settings_of
from trainer.metrics import read
from trainer.models import digest_of
from trainer.probe import ProbePair, read_probe

ROOT = Path(__file__).resolve().parents[2]
STEPS = 10


def killed(job: Path, *, point: str | None = None, step: int | None = None) -> None:
    """Runs the job in a child that is killed at a failpoint, or when `step` is reported."""
    context = multiprocessing.get_context("forkserver")  # not fork: polars has threads
    context.set_forkserver_preload(["torch", "transformers", "peft", "renderers", "polars"])
    child = context.Process(target=_run, args=(job, point, step))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (job.parent / "result.json").exists()


def _run(job: Path, point: str | None, step: int | None) -> None:
    def listener(name: str, done: int, total: int | None, note: str) -> None:
        if name == "training" and done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    if point:
        failpoints.arm(point)
    progress.listen(listener)
    run(job)


def changed(job: Path, **changes: Any) -> None:
    content = msgspec.json.decode(job.read_bytes(), type=Job)
    job.write_bytes(msgspec.json.encode(msgspec.structs.replace(content, **changes)))


def outcome(folder: Path) -> tuple[Any, ...]:
    """All that a run leaves, but for how long it took and where it lies."""
    result = json.loads((folder / "result.json").read_bytes())
    for name in ("seconds", "adapter"):
        del result[name]
    machine = {"flops_share", "flops_per_second", "memory_mib"}
    lines = [
        msgspec.structs.replace(
            line,
            seconds=0,
            tokens_per_second=0,
            measured={name: one for name, one in line.measured.items() if name not in machine},
        )
        for line in read(folder / "metrics.jsonl")
    ]
    weights = (folder / "adapter" / "adapter_model.safetensors").read_bytes()
    return result, lines, weights, (folder / "probe.json").read_bytes()


@pytest.fixture
def unbroken(job_in: Any) -> tuple[Any, ...]:
    job = job_in("unbroken")
    run(job)
    return outcome(job.parent)


def test_a_job_leaves_adapter_probe_metrics_and_result(job_in: Any) -> None:
    job = job_in("one")
    result = run(job)
    folder = job.parent
    assert result.steps == STEPS and result.rows == 20 and result.refused == ()
    assert result.old_digest is None
    assert result.checkpoint_id == digest_of(folder / "adapter")
    assert msgspec.json.decode((folder / "result.json").read_bytes(), type=JobResult) == result
    assert result.last_loss is not None and result.first_loss is not None
    assert result.last_loss < result.first_loss
    config = json.loads((folder / "adapter" / "adapter_config.json").read_bytes())
    assert (config["r"], config["lora_alpha"]) == (8, 16)
    entries = read_probe(folder / "probe.json").entries
    assert len(entries) == 8
    assert all(len(entry.new) == len(entry.old) == len(entry.completion_ids) for entry in entries)
    assert all(sum(entry.new) > sum(entry.old) for entry in entries)


def test_a_finished_job_returns_its_result_at_once(job_in: Any) -> None:
    job = job_in("one")
    first = run(job)
    before = {path: path.stat().st_mtime_ns for path in job.parent.rglob("*") if path.is_file()}
    assert run(job) == first
    for path, written in before.items():
        assert path.stat().st_mtime_ns == written


def test_the_same_job_in_another_place_gives_the_same_bits(job_in: Any) -> None:
    one, other = job_in("one"), job_in("other")
    assert run(one).checkpoint_id == run(other).checkpoint_id
    assert outcome(one.parent) == outcome(other.parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "train.after_step",
        "train.before_checkpoint",
        "train.after_checkpoint",
        "train.before_adapter",
        "train.before_result",
    ],
)
def test_a_run_killed_at_a_boundary_ends_with_the_same_bits(
    job_in: Any, unbroken: tuple[Any, ...], point: str
) -> None:
    job = job_in("killed")
    killed(job, point=point)
    run(job)
    assert outcome(job.parent) == unbroken


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bits(
    job_in: Any, unbroken: tuple[Any, ...]
) -> None:
    job = job_in("killed")
    for step in (3, 4, 7, 9, 10):
        killed(job, step=step)
    run(job)
    assert outcome(job.parent) == unbroken


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_steps_but_no_bits(
    job_in: Any, unbroken: tuple[Any, ...]
) -> None:
    job = job_in("killed")
    killed(job, step=7)
    weights = job.parent / "checkpoints" / "step-6" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    run(job)
    assert (job.parent / "checkpoints" / "damaged-step-6-1").is_dir()
    assert outcome(job.parent) == unbroken


def test_a_run_that_ended_when_configs_did_not_count_is_not_trained_again(job_in: Any) -> None:
    first = run(job_in("first"))
    path = job_in("second", init_adapter=first.adapter)
    after = run(path)
    job = read_job(path)
    now, older = _identities(job, settings_of(job))
    assert after.job == now != older
    result = Path(job.out) / "result.json"
    result.write_bytes(result.read_bytes().replace(now.encode(), older.encode()))
    assert run(path) == msgspec.structs.replace(after, job=older)
    config = Path(first.adapter) / "adapter_config.json"
    config.write_text(config.read_text().replace('"use_rslora": false', '"use_rslora": true'))
    assert _identities(job, settings_of(job))[0] != now


def test_training_goes_on_from_the_champions_adapter(job_in: Any) -> None:
    first = job_in("first")
    before = run(first)
    second = job_in("second", init_adapter=before.adapter)
    after = run(second)
    assert after.old_digest == before.checkpoint_id != after.checkpoint_id
    assert after.first_loss is not None and before.first_loss is not None
    assert after.first_loss < before.first_loss
    news = [entry.new for entry in read_probe(first.parent / "probe.json").entries]
    olds = [entry.old for entry in read_probe(second.parent / "probe.json").entries]
    assert news == olds


def test_the_champions_adapter_keeps_its_shape(job_in: Any) -> None:
    before = run(job_in("first"))
    second = job_in("second", init_adapter=before.adapter, train={"rank": 4})
    with pytest.raises(UsageError, match="rank 8 and alpha 16, the project says 4 and 16"):
        run(second)


def test_probe_pairs_can_be_given(job_in: Any) -> None:
    pair = ProbePair((1, 2, 3), (4, 5))
    job = job_in("one", probe=(pair,))
    run(job)
    (entry,) = read_probe(job.parent / "probe.json").entries
    assert (entry.prompt_ids, entry.completion_ids) == (pair.prompt_ids, pair.completion_ids)


def test_rows_that_cannot_be_trained_on_are_told_and_left_out(job_in: Any) -> None:
    job = job_in("one")
    rows = read_rows(job.parent / "rows.parquet")
    cut = msgspec.structs.replace(rows[0], finish_reason="length")
    write_rows(job.parent / "rows.parquet", [cut, *rows[1:]])
    result = run(job)
    assert result.rows == 19
    assert result.refused == ((cut.id, "its answer did not end: finish reason length"),)
    write_rows(job.parent / "rows.parquet", [cut])
    changed(job, out=str(job.parent / "again"))
    with pytest.raises(FlywheelError, match=r"none of 1 rows.*did not end"):
        run(job)


def test_a_folder_with_another_jobs_result_is_refused(job_in: Any) -> None:
    job = job_in("one")
    run(job)
    changed(job, seed=5)
    with pytest.raises(UsageError, match="another job"):
        run(job)


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"base_model": "/nowhere"}, MissingPart, "/nowhere"),
        ({"rows": "/nowhere/rows.parquet"}, UsageError, "no rows"),
        ({"init_adapter": "/nowhere"}, MissingPart, "/nowhere"),
        ({"train": {"rank": 0}}, UsageError, "rank"),
        ({"train": {"rnak": 4}}, UsageError, "rnak"),
        ({"train": {"micro_tokens": 16}}, UsageError, "micro_tokens = 16"),
    ],
)
def test_what_is_wrong_with_a_job_is_said(
    job_in: Any, changes: dict[str, Any], error: type[FlywheelError], reason: str
) -> None:
    job = job_in("one")
    changed(job, **changes)
    with pytest.raises(error, match=reason):
        run(job)
    assert not (job.parent / "result.json").exists()


def test_two_trainers_never_share_a_run(job_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    job = job_in("one")
    monkeypatch.setattr("trainer.job.WAIT_S", 0.1)
    with (
        FileLock(job.parent / "trainer.lock"),
        pytest.raises(Busy, match="another process trains run run"),
    ):
        run(job)


@pytest.mark.slow
def test_the_command_runs_a_job_and_prints_its_result(job_in: Any) -> None:
    job = job_in("one")
    done = subprocess.run(
        [sys.executable, "-m", "trainer", str(job)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    printed = msgspec.json.decode(done.stdout.splitlines()[-1], type=JobResult)
    assert printed == run(job)


@pytest.mark.slow
def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-m", "trainer", str(tmp_path / "job.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "job.json is not a training job" in line
