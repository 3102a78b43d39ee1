from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flywheel.errors import ProjectError, UsageError
from flywheel.home import Home
from flywheel.known import known, remember
from flywheel.once import issue, spend
from flywheel.project import Project, load_project


def project_in(folder: Path, more: str = "") -> Project:
    folder.mkdir(exist_ok=True)
    (folder / "flywheel.toml").write_text(
        f'name = "inbox"\n{more}\n[model]\nbase = "b"\n[environment]\npath = "e.py:E"\n'
    )
    return load_project(folder)


def test_a_project_is_found_where_it_was_last(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert known(home) == {}
    remember(home, project_in(tmp_path / "old"))
    remember(home, project_in(tmp_path / "new"))
    (home.projects / "torn.json").write_text("{")
    assert known(home) == {"inbox": (tmp_path / "new").resolve()}


def test_a_token_is_good_once_whoever_is_fast(tmp_path: Path) -> None:
    home, token = Home(tmp_path), issue()
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda _: spend(home, token), range(64)))
    assert sum(won) == 1
    assert not spend(home, token)


@pytest.mark.parametrize("token", ["", "../../etc/passwd", "a" * 65, "short"])
def test_what_is_no_token_is_told(tmp_path: Path, token: str) -> None:
    with pytest.raises(UsageError):
        spend(Home(tmp_path), token)


@pytest.mark.parametrize(
    "more", ['timezone = "Mars/Olympus"', "[schedule]\nturn = 0", '[schedule]\nturn = "often"']
)
def test_a_schedule_that_cannot_be_kept_is_told(tmp_path: Path, more: str) -> None:
    with pytest.raises(ProjectError, match=r"time zone|at least 1|cron"):
        project_in(tmp_path / "p", more)


def test_a_schedule_is_no_part_of_what_a_turn_does(tmp_path: Path) -> None:
    plain = project_in(tmp_path / "p").digest()
    assert project_in(tmp_path / "p", '[schedule]\nturn = "off"\n').digest() == plain
