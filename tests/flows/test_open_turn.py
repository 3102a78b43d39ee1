"""Which data a turn works from: its own snapshot, whatever comes while it is under way."""

from pathlib import Path
from types import ModuleType

import pytest

from flywheel.errors import Refused
from flywheel.home import Home
from storage.committer import commit
from storage.inbox import Inbox
from tasks.turns import (
    close_turn,
    closed_if_refused,
    open_turn,
    run_folder,
    turn_to_come,
    turn_under_way,
)


@pytest.fixture
def arrive(home: Home, traffic: ModuleType):  # type: ignore[no-untyped-def]
    def more(seed: int) -> None:
        Inbox(home).append(traffic.recorded("sorting", traffic.asks(3, seed=seed), "sorting-v0"))
        commit(home)

    return more


def test_a_turn_under_way_keeps_its_data(home: Home, project_folder: Path, arrive) -> None:  # type: ignore[no-untyped-def]
    arrive(1)
    first = open_turn(str(project_folder), {})
    arrive(2)
    assert open_turn(str(project_folder), {}) == first
    close_turn(first)
    assert open_turn(str(project_folder), {}).run_id != first.run_id


def test_a_fresh_turn_takes_what_came_until_there_is_something_trained(
    home: Home, project_folder: Path, arrive
) -> None:  # type: ignore[no-untyped-def]
    arrive(1)
    first = open_turn(str(project_folder), {})
    assert open_turn(str(project_folder), {}, fresh=True) == first, "nothing came"
    arrive(2)
    second = open_turn(str(project_folder), {}, fresh=True)
    assert second.run_id != first.run_id and second.sequence > first.sequence
    (run_folder(second) / "training.json").write_text("{}")
    arrive(3)
    assert open_turn(str(project_folder), {}, fresh=True) == second


def test_a_refused_turn_hides_nothing_that_came_since(
    home: Home, project_folder: Path, arrive
) -> None:  # type: ignore[no-untyped-def]
    arrive(1)
    folder = str(project_folder)
    first = open_turn(folder, {})
    (run_folder(first) / "dataset.json").write_text('{"passed": false}')
    assert open_turn(folder, {}) == first, "nothing came"
    (run_folder(first) / "turn.md").write_text("refused")
    close_turn(first)
    again = open_turn(folder, {})
    assert again.repeated and open_turn(folder, {}) == again
    arrive(2)
    second = open_turn(folder, {})
    assert second.sequence > first.sequence and not second.repeated
    with pytest.raises(Refused), closed_if_refused(second):
        raise Refused("too few rows")
    assert turn_under_way(home, "sorting") is None


def test_looking_at_the_turn_to_come_opens_none(home: Home, project_folder: Path, arrive) -> None:  # type: ignore[no-untyped-def]
    arrive(1)
    seen = turn_to_come(str(project_folder))
    assert turn_under_way(home, "sorting") is None
    assert not home.runs.exists()
    arrive(2)
    assert open_turn(str(project_folder), {}).run_id != seen.run_id


@pytest.mark.slow
def test_hourly_grading_leaves_no_run_and_the_turn_takes_what_it_graded(
    prefect_server: str, home: Home, project_folder: Path, arrive
) -> None:  # type: ignore[no-untyped-def]
    from flows.grade import grade
    from tasks.grade import grade_recorded

    arrive(1)
    graded = grade(str(project_folder))
    assert not list(home.runs.glob("*")), "an hour's look is no run"
    turn = open_turn(str(project_folder), {})
    again = grade_recorded(turn)
    assert (graded["looked_at"], again["looked_at"]) == (3, 0)
    kept = ("graded", "not_gradable", "reasons", "judge")
    assert [again[key] for key in kept] == [graded[key] for key in kept]
    assert again["graded"] + again["not_gradable"] >= 3
