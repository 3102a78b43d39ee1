import json
import multiprocessing
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel import failpoints, progress
from flywheel.errors import CorruptFile, FlywheelError, UsageError
from trainer import spool
from trainer.job import Job, run
from trainer.metrics import read
from trainer.models import digest_of
from trainer.probe import read_probe


def outcome(folder: Path) -> tuple[Any, ...]:
    """All that a run leaves, but for how long it took and where it lies."""
    result = json.loads((folder / "result.json").read_bytes())
    for name in ("seconds", "adapter"):
        del result[name]
    losses = [(line.step, line.loss, line.grad_norm) for line in read(folder / "metrics.jsonl")]
    made = {
        version: [
            (spool.version_folder(folder, version) / name).read_bytes()
            for name in ("probe.json", "adapter/adapter_model.safetensors")
        ]
        for version in spool.versions(folder)
    }
    return result, losses, made, (folder / "probe.json").read_bytes()


def killed_at(job: Path, point: str) -> None:
    context = multiprocessing.get_context("forkserver")  # not fork: polars has threads
    context.set_forkserver_preload(["torch", "transformers", "peft", "renderers", "polars"])
    child = context.Process(target=_run, args=(job, point))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (job.parent / "result.json").exists()


def _run(job: Path, point: str) -> None:
    failpoints.arm(point)
    run(job)


def test_every_step_leaves_a_version_with_a_probe_and_the_last_is_the_result(
    online_job_in: Any,
) -> None:
    job = online_job_in("one")
    result = run(job)
    folder = job.parent
    assert (result.steps, result.rows, result.refused) == (4, 20, ())
    assert spool.versions(folder) == [1, 2, 3, 4]
    last = spool.version_folder(folder, 4)
    assert digest_of(last / "adapter") == digest_of(folder / "adapter") == result.checkpoint_id
    assert (last / "probe.json").read_bytes() == (folder / "probe.json").read_bytes()
    first, second = (read_probe(spool.version_folder(folder, n) / "probe.json") for n in (1, 2))
    assert [entry.old for entry in first.entries] == [entry.old for entry in second.entries]
    assert [entry.new for entry in first.entries] != [entry.new for entry in second.entries]
    assert run(job) == result


def test_batches_are_waited_for(online_job_in: Any, rendering: Any, batch_at: Any) -> None:
    job = online_job_in("late", put=1)

    def put_next(name: str, done: int, total: int | None, note: str) -> None:
        if name == "training" and done and done < 4:
            later = threading.Timer(
                0.2, spool.put_batch, (job.parent, batch_at(done + 1, rendering))
            )
            later.start()

    stop = progress.listen(put_next)
    try:
        late = run(job)
    finally:
        stop()
    assert late.checkpoint_id == run(online_job_in("whole")).checkpoint_id


def test_a_run_may_be_ended_before_its_last_step(online_job_in: Any) -> None:
    job = online_job_in("short", put=3)
    spool.end(job.parent, after=3)
    assert run(job).steps == 3
    assert spool.versions(job.parent) == [1, 2, 3]


def test_a_run_ended_before_its_first_step_trained_nothing(online_job_in: Any) -> None:
    job = online_job_in("none", put=0)
    spool.end(job.parent, after=0)
    with pytest.raises(FlywheelError, match="ended before its first step"):
        run(job)


def test_whoever_waits_too_long_says_for_what(online_job_in: Any) -> None:
    job = online_job_in("alone", put=2, patience_s=0.0)
    with pytest.raises(FlywheelError, match=r"no batch for step 3 came"):
        run(job)
    assert spool.versions(job.parent) == [1, 2]


def test_batches_that_no_one_can_need_again_are_removed(online_job_in: Any) -> None:
    job = online_job_in("long", train={"checkpoint_every": 1, "rl": {"steps": 4}})
    run(job)
    left = sorted(path.name for path in (job.parent / "batches").glob("step-*"))
    assert left == ["step-000004.batch"]


def test_a_run_of_all_weights_leaves_whole_models(online_job_in: Any) -> None:
    train = {"method": "full", "ema": 0.5, "rl": {"steps": 1}}
    result = run(online_job_in("full", put=1, train=train))
    folder = Path(result.adapter).parent
    assert (result.kind, result.adapter) == ("full", str(folder / "model"))
    version = spool.version_folder(folder, 1)
    assert (version / "model" / "tokenizer.json").is_file()
    assert digest_of(version / "model") != result.checkpoint_id  # which is the average
    entries = zip(
        read_probe(folder / "probe.json").entries,
        read_probe(version / "probe.json").entries,
        strict=True,
    )
    assert all(kept.old == live.old and kept.new != live.new for kept, live in entries)


def test_rows_and_batches_are_two_kinds_of_job(online_job_in: Any) -> None:
    job = online_job_in("both")
    content = msgspec.json.decode(job.read_bytes(), type=Job)
    for changes in ({"rows": str(job)}, {"online": False}):
        job.write_bytes(msgspec.json.encode(msgspec.structs.replace(content, **changes)))
        with pytest.raises(UsageError, match="either rows or online"):
            run(job)


@pytest.mark.slow
def test_a_run_killed_at_every_boundary_ends_with_the_same_bits(online_job_in: Any) -> None:
    unbroken = online_job_in("unbroken")
    run(unbroken)
    job = online_job_in("killed")
    for point in (
        "train.after_step",
        "train.before_version",
        "train.after_version",
        "train.before_checkpoint",
        "train.after_checkpoint",
        "train.before_version",
        "train.before_adapter",
        "train.before_result",
    ):
        killed_at(job, point)
    run(job)
    assert outcome(job.parent) == outcome(unbroken.parent)


def test_what_was_dropped_is_not_brought_back(online_job_in: Any) -> None:
    job = online_job_in("dropped", put=3, patience_s=0.0)
    with pytest.raises(FlywheelError, match="no batch for step 4"):
        run(job)
    spool.drop_version(job.parent, 1)
    for checkpoint in (job.parent / "checkpoints").iterdir():
        os.rename(checkpoint, job.parent / checkpoint.name)  # trained from the beginning again
    with pytest.raises(FlywheelError, match="no batch for step 4"):
        run(job)
    assert spool.versions(job.parent) == [2, 3]


def test_a_batch_that_is_not_this_steps_or_this_models_trains_nothing(
    online_job_in: Any, rendering: Any, batch_at: Any
) -> None:
    job = online_job_in("strange", put=1)
    folder, batch = job.parent, batch_at(1, rendering)
    first = batch.samples[0]
    replaced = msgspec.structs.replace
    foreign = replaced(first, token_ids=(*first.token_ids[:-1], 5000))
    strange = replaced(first, weights={"praise": first.weights["ce"]})
    for broken, reason in (
        (replaced(batch, step=2), "is the batch of step 2"),
        (replaced(batch, samples=(foreign,)), "a token that the model has not"),
        (replaced(batch, samples=(strange,)), r"weighs in no loss: \['praise'\]"),
    ):
        spool.batch_path(folder, 1).write_bytes(msgspec.msgpack.encode(broken))
        with pytest.raises(CorruptFile, match=reason):
            run(job)
    whole = msgspec.msgpack.encode(batch)
    odd = msgspec.msgpack.decode(whole)
    odd["samples"][0]["weights"]["ce"][-1] = float("nan")
    for data in (whole[:-9], msgspec.msgpack.encode(odd)):
        spool.batch_path(folder, 1).write_bytes(data)
        with pytest.raises(CorruptFile, match="is not a batch"):
            spool.take_batch(folder, 1)
    assert not list(folder.glob("checkpoints/*")) and not spool.versions(folder)


def test_a_run_that_lost_its_checkpoints_does_not_wait_for_what_is_gone(
    online_job_in: Any,
) -> None:
    job = online_job_in("lost", put=2, train={"checkpoint_every": 1, "rl": {"steps": 2}})
    run(job)
    (job.parent / "result.json").unlink()
    shutil.rmtree(job.parent / "checkpoints")
    with pytest.raises(FlywheelError, match=r"step 1 must be trained again.*its batch is gone"):
        run(job)
