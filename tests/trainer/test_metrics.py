"""metrics.jsonl: flat lines, one a step, whatever a step measured."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import Full
from trainer.metrics import MetricsFile, StepMetrics, read


def line(step: int, **measured: float | None) -> StepMetrics:
    floats = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "seconds")
    counts = ("ce_tokens", "tokens", "computed_tokens", "micro_batches")
    fields: dict[str, Any] = dict.fromkeys(floats, 0.5) | dict.fromkeys(counts, 2)
    return StepMetrics(step=step, measured=measured, **fields)


def written(path: Path, *lines: StepMetrics, after: int = 0) -> None:
    with MetricsFile(path, after=after) as file:
        for each in lines:
            file.append(each)


def test_what_was_measured_stands_beside_the_fields(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    measured = {"loss/rl": -0.1, "rl/entropy": 1.5, "reward": None, "reward/Berlin": 0.25}
    written(path, line(1, **measured))
    assert json.loads(path.read_text()) | measured == json.loads(path.read_text())
    assert read(path) == [line(1, **measured)]


def test_an_unheard_of_number_is_null_and_a_field_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, line(1, odd=math.inf, other=math.nan, loss=9.0))
    (found,) = read(path)
    assert found.loss == 0.5
    assert found.measured == {"odd": None, "other": None}


def test_a_resumed_run_drops_later_lines_and_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, line(1, reward=0.1), line(2, reward=0.2), line(3, reward=0.3))
    path.write_bytes(path.read_bytes() + b'{"step": 4, "lo')
    written(path, line(3, reward=0.9), after=2)
    assert [one.measured["reward"] for one in read(path)] == [0.1, 0.2, 0.9]


def test_lines_without_measurements_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, line(1))
    assert "measured" not in path.read_text()
    assert read(path)[0].measured == {}


@pytest.mark.parametrize("torn", [b"", b"\n", b"[1]\n", b'{"step": 1}\n'])
def test_what_is_not_a_line_ends_the_list(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(torn)
    assert read(path) == []


def test_a_line_that_no_disk_takes_is_told(tmp_path: Path) -> None:
    full = tmp_path / "metrics.jsonl"
    with MetricsFile(full, after=0) as file:
        file._file.close()
        file._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
        with pytest.raises(Full, match=str(full)):
            file.append(line(1))
