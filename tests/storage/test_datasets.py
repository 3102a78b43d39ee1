import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock

from flywheel.errors import Busy, CorruptFile, UsageError
from flywheel.home import Home
from flywheel.records import say
from flywheel.rows import TrainingRow
from storage.curate import Curated, RuleSpec, curate
from storage.datasets import DROPPED_EXAMPLES, read_dataset, write_dataset
from tests.storage.rows_for_curation import a_row

ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import sys
from pathlib import Path
from flywheel import failpoints
from tests.storage.test_datasets import RULES, Home, curated, write_dataset
failpoints.arm("dataset.before_publish")
write_dataset(Home(Path(sys.argv[1])), "support", curated(), parents=[], rules=RULES)
"""

RULES = (RuleSpec(name="min_reward", params={"value": 1.0}),)


def some(count: int = 3) -> list[TrainingRow]:
    return [a_row(k) for k in range(count)]


def curated(rows: list[TrainingRow] | None = None) -> Curated:
    return curate(some() if rows is None else rows, RULES, [], 0.7)


def test_rows_come_back_as_they_were_curated(tmp_path: Path) -> None:
    home = Home(tmp_path)
    result = curated()
    dataset = write_dataset(home, "support", result, parents=["run"], rules=RULES)
    assert (dataset.project, dataset.rows, dataset.parents) == ("support", 3, ("run",))
    assert dataset.rules == result.counts
    assert read_dataset(home, dataset) == list(result.rows)
    assert read_dataset(home, dataset.id) == list(result.rows)


def test_the_folder_tells_what_it_is(tmp_path: Path) -> None:
    rows = [*some(), a_row(9, reward=0.0)]
    dataset = write_dataset(Home(tmp_path), "support", curated(rows), parents=["run"], rules=RULES)
    folder = tmp_path / dataset.path
    assert sorted(path.name for path in folder.iterdir()) == [
        "dropped.jsonl",
        "dropped.parquet",
        "manifest.json",
        "rows.parquet",
    ]
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    assert manifest["rules"] == [{"name": "min_reward", "params": {"value": 1.0}}]
    assert [(each["rows_in"], each["rows_out"]) for each in manifest["counts"]] == [(4, 4), (4, 3)]
    assert sorted(key[0] for key in manifest["keys"]) == sorted(row.id for row in some())
    [dropped] = (folder / "dropped.jsonl").read_text().splitlines()
    assert "reward 0 is under 1" in dropped


def test_the_same_content_has_the_same_id_and_bytes_in_any_order_and_home(tmp_path: Path) -> None:
    folders = []
    for name, rows in (("a", some()), ("b", some()[::-1])):
        home = Home(tmp_path / name)
        dataset = write_dataset(home, "support", curated(rows), parents=["run"], rules=RULES)
        folders.append(home.path(dataset.path))
    assert folders[0].name == folders[1].name
    for file in folders[0].iterdir():
        assert file.read_bytes() == (folders[1] / file.name).read_bytes()


def test_what_decides_the_training_decides_the_id(tmp_path: Path) -> None:
    home = Home(tmp_path)

    def identity(rows: list[TrainingRow], project: str = "p", parent: str = "r") -> str:
        return write_dataset(home, project, curated(rows), parents=[parent], rules=RULES).id

    first = some()[0]
    changed = msgspec.structs.replace
    ids = {
        identity(some()),
        identity(some(2)),
        identity([changed(first, weight=2.0), *some()[1:]]),
        identity([changed(first, reward=1.5), *some()[1:]]),
        identity([changed(first, completion=say("assistant", "y")), *some()[1:]]),
        identity(some(), project="q"),
        identity(some(), parent="s"),
        write_dataset(home, "p", curated(), parents=["r"], rules=()).id,
    }
    assert len(ids) == 8
    # Ids of traces may be ULIDs of a sender's: they are kept in the rows and decide nothing.
    assert identity([changed(first, trace_id="other"), *some()[1:]]) in ids


def test_writing_it_again_touches_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = write_dataset(home, "support", curated(), parents=[], rules=RULES)
    before = {path: path.stat().st_mtime_ns for path in home.path(first.path).rglob("*")}
    assert write_dataset(home, "support", curated(), parents=[], rules=RULES) == first
    assert {path: path.stat().st_mtime_ns for path in home.path(first.path).rglob("*")} == before


def test_an_empty_dataset_is_one_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    dataset = write_dataset(home, "support", curated([]), parents=[], rules=RULES)
    assert dataset.rows == 0 and read_dataset(home, dataset) == []


def test_a_two_megabyte_row_is_kept_whole(tmp_path: Path) -> None:
    home = Home(tmp_path)
    row = a_row(1, messages=(say("user", "☃ word " * 300_000),))
    dataset = write_dataset(home, "support", curated([row]), parents=[], rules=RULES)
    assert read_dataset(home, dataset) == [row]


def test_dropped_rows_are_examples_and_the_counts_are_whole(tmp_path: Path) -> None:
    home = Home(tmp_path)
    rows = [a_row(k, reward=0.0) for k in range(DROPPED_EXAMPLES + 5)]
    dataset = write_dataset(home, "support", curated(rows), parents=[], rules=RULES)
    lines = (home.path(dataset.path) / "dropped.jsonl").read_text().splitlines()
    assert len(lines) == DROPPED_EXAMPLES
    assert dataset.rules[1].rows_in == DROPPED_EXAMPLES + 5


@pytest.mark.parametrize("file", ["rows.parquet", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_dataset_is_refused_and_written_anew(
    tmp_path: Path, file: str, damage: str
) -> None:
    home = Home(tmp_path)
    dataset = write_dataset(home, "support", curated(), parents=[], rules=RULES)
    path = home.path(dataset.path) / file
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"flip": flipped, "cut": data[:middle], "empty": b""}[damage])
    if damage == "flip" and file == "manifest.json":
        path.write_bytes(data.replace(b"1.0", b"0.0", 1))
    with pytest.raises(CorruptFile, match=dataset.id):
        read_dataset(home, dataset)
    assert write_dataset(home, "support", curated(), parents=[], rules=RULES) == dataset
    assert len(read_dataset(home, dataset)) == 3


def test_a_folder_moved_under_another_id_is_corrupt(tmp_path: Path) -> None:
    home = Home(tmp_path)
    one = write_dataset(home, "support", curated(), parents=["a"], rules=RULES)
    two = write_dataset(home, "support", curated(some(2)), parents=["b"], rules=RULES)
    shutil.rmtree(home.path(two.path))
    shutil.copytree(home.path(one.path), home.path(two.path))
    with pytest.raises(CorruptFile):
        read_dataset(home, two)


@pytest.mark.parametrize("name", ["", "*", "../support", "0" * 32, "nonsense"])
def test_an_unknown_dataset_is_named(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path)
    dataset = write_dataset(home, "support", curated(), parents=[], rules=RULES)
    with pytest.raises(UsageError, match="no dataset"):
        read_dataset(home, name)
    shutil.rmtree(home.path(dataset.path))
    with pytest.raises(UsageError, match="is not at"):
        read_dataset(home, dataset)


@pytest.mark.slow
def test_killed_before_it_is_published_nothing_is_visible_and_the_next_try_cleans_up(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)

    # A process of its own, not a fork: polars' threads do not survive one.
    child = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False)
    assert child.returncode == -signal.SIGKILL
    [left] = (home.datasets / "support").iterdir()
    assert left.name.startswith(".making-")
    dataset = write_dataset(home, "support", curated(), parents=[], rules=RULES)
    assert [path.name for path in (home.datasets / "support").iterdir()] == [dataset.id]


def test_many_writers_of_one_dataset_agree(tmp_path: Path) -> None:
    home = Home(tmp_path)

    def write(_: int) -> str:
        return write_dataset(home, "support", curated(), parents=[], rules=RULES).id

    with ThreadPoolExecutor(4) as pool:
        [identity] = set(pool.map(write, range(8)))
    assert os.listdir(home.datasets / "support") == [identity]


def test_a_writer_that_never_lets_go_is_told_not_waited_for(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.locks.mkdir()
    with (
        FileLock(home.locks / "dataset-support.lock"),
        pytest.raises(Busy, match="dataset of support"),
    ):
        write_dataset(home, "support", curated(), parents=[], rules=RULES, wait_s=0.05)
