import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from flywheel.durable import no_space
from flywheel.errors import CorruptFile, Full, UsageError
from trainer.checkpoints import (
    Checkpoint,
    Progress,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)


def at_step(step: int, job: str = "job") -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    return Checkpoint(
        progress=Progress(
            job=job, step=step, first_loss=2.5, last_loss=1 / 3, tokens=7, seconds=1.5
        ),
        weights={"layer.lora_A": torch.randn(3, 4, generator=generator)},
        optimizer={
            "0.step": torch.tensor(float(step)),
            "0.exp_avg": torch.randn(3, 4, generator=generator),
        },
        random=generator.get_state(),
        average={"layer.lora_A": torch.randn(3, 4, generator=generator)},
    )


def same(one: Checkpoint, other: Checkpoint) -> bool:
    assert one.average is not None and other.average is not None
    pairs = [
        (one.weights, other.weights),
        (one.optimizer, other.optimizer),
        (one.average, other.average),
    ]
    return (
        one.progress == other.progress
        and torch.equal(one.random, other.random)
        and all(
            left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
            for left, right in pairs
        )
    )


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, at_step(3))
    found = newest_checkpoint(tmp_path, "job")
    assert found is not None and same(load_checkpoint(found), at_step(3))


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (2, 9, 10, 11):
        save_checkpoint(tmp_path, at_step(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-11"]


def test_nothing_there_means_from_the_beginning(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none", "job") is None


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"]
)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(
    tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path, at_step(2))
    newest = save_checkpoint(tmp_path, at_step(4))
    data = bytearray((newest / name).read_bytes())
    if damage == "gone":
        (newest / name).unlink()
    else:
        data[len(data) // 2] ^= 1
        (newest / name).write_bytes(data if damage == "flip" else data[: len(data) // 2])
    with pytest.raises(CorruptFile, match="step-4"):
        load_checkpoint(newest)
    with caplog.at_level(logging.WARNING):
        found = newest_checkpoint(tmp_path, "job")
    assert found is not None and found.name == "step-2"
    assert "set aside" in caplog.text
    assert (tmp_path / "damaged-step-4-1").is_dir()
    save_checkpoint(tmp_path, at_step(4))
    again = newest_checkpoint(tmp_path, "job")
    assert again is not None and same(load_checkpoint(again), at_step(4))


def test_what_a_kill_left_half_written_is_not_a_checkpoint(tmp_path: Path) -> None:
    half = tmp_path / ".step-4.tmp"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    assert newest_checkpoint(tmp_path, "job") is None
    assert not half.exists()


def test_another_jobs_checkpoint_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, at_step(2, job="other"))
    with pytest.raises(UsageError, match="another job"):
        newest_checkpoint(tmp_path, "job")


def test_a_library_that_finds_the_disk_full_says_so_as_everyone_does(tmp_path: Path) -> None:
    words = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(Full, match=r"no space left to write .*step-2"), no_space(Path("step-2")):
        raise SafetensorError(words)


def test_a_checkpoint_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    shared = torch.zeros(4)
    broken = dataclasses.replace(at_step(2), weights={"a": shared, "b": shared[:2]})
    save_checkpoint(tmp_path, at_step(1))
    with pytest.raises(RuntimeError, match="share memory"):
        save_checkpoint(tmp_path, broken)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
