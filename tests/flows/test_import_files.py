"""Files read by many workers: the store is what one process would have made of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.home import Home
from storage import queries
from storage.importer import import_path

pytestmark = pytest.mark.slow


def row(number: int) -> str:
    asked = [{"role": "user", "content": f"question {number}"}]
    answered = {"choices": [{"message": {"role": "assistant", "content": f"answer {number}"}}]}
    return json.dumps({"request": {"model": "m", "messages": asked}, "response": answered})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for file in range(7):
        lines = [row(10 * file + n) for n in range(10)]
        (folder / f"{file}.jsonl").write_text("\n".join([*lines, "no JSON", lines[0]]))
    return folder


@pytest.fixture
def dask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of Dask's that is there already, its workers threads of this process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        yield


@pytest.mark.usefixtures("prefect_server", "dask")
def test_many_workers_make_the_store_that_one_process_makes(
    home: Home, files: Path, tmp_path: Path
) -> None:
    from flows.import_files import import_files

    alone = Home(tmp_path / "alone")
    expected = import_path(alone, files, project="shop")
    found = import_files(
        [files], "shop", form="auto", max_line=1 << 20, told=(None, None, None), runner="dask",
        workers=2,
    )  # fmt: skip
    assert found["traces"] == expected.traces == 70 and found["files"] == 7
    assert (found["quarantined"], found["duplicates"]) == (7, expected.duplicates)
    assert contents(home) == contents(alone)


def contents(home: Home) -> list[tuple[str, str]]:
    return sorted(
        (one.id, str(one.spans)) for batch in queries.traces(home, project="shop") for one in batch
    )
