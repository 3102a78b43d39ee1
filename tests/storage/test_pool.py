import random
from pathlib import Path

import polars as pl
import pytest

from flywheel.row_files import read_rows, rows_in
from flywheel.rows import TrainingRow
from storage import pool as pools
from storage.curate import RuleSpec, curate
from storage.pool import Pool
from tests.storage.rows_for_curation import a_row

RULES = [RuleSpec(name="exact_duplicates"), RuleSpec(name="per_problem", params={"keep": 2})]


def some() -> list[TrainingRow]:
    return [a_row(k, problem_id=f"p{k % 30}", at=k, signals=()) for k in range(150)]


def test_a_pool_on_disk_gives_what_one_in_memory_does_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "PART_BYTES", 10_000)
    monkeypatch.setattr("storage.curate.BATCH", 60)
    held = curate(some(), RULES, [])
    shuffled = some()
    random.Random(2).shuffle(shuffled)
    with Pool(tmp_path / "pools") as pool:
        made = curate(iter(shuffled), RULES, [], pool=pool)
        assert len(list((tmp_path / "pools").glob("*/*.arrow"))) > 16
        assert (made.rows, made.counts, made.keys()) == (held.rows, held.counts, held.keys())
        for name, one in (("a", made), ("b", held)):
            one.write(tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert tuple(read_rows(tmp_path / "a")) == held.rows
    assert list((tmp_path / "pools").iterdir()) == []


def test_the_next_pool_removes_what_a_killed_process_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "PART_BYTES", 1)
    left = tmp_path / "left"
    left.mkdir()
    (left / "in-use").touch()  # the kernel drops a dead process's lock
    with Pool(tmp_path) as one, Pool(tmp_path) as other:
        one.add([a_row(1)], {}, pools.Known())
        assert not left.exists()
        other.add([a_row(2)], {}, pools.Known())
        assert len(list(tmp_path.iterdir())) == 2


def test_weights_are_those_that_were_chosen() -> None:
    pool = Pool()
    pool.add([a_row(1), a_row(2)], {}, pools.Known())
    chosen = pool.frame().with_columns(weight=pl.lit(0.25)).head(1)
    [row] = [row for some in pool.rows(chosen) for row in rows_in(some)]
    assert row.weight == 0.25 and row.id == chosen["row_id"][0]
