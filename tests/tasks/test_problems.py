"""`flywheel problems` over a real home: mined, stored, listed, shown; what turns then take."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from app.cli import flywheel
from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.project import Project, load_project
from flywheel.records import Choice, Feedback, Grade, ModelCall, Span, Trace, say
from storage.committer import commit
from storage.inbox import Inbox
from storage.queries import problems
from tasks.problems import found, limits, mine_traffic, moment_of, stored
from tests.app.calling import call

ENVIRONMENT = """
from environments.define import Environment, reward

class Desk(Environment):
    @reward()
    def correct(self, answer, problem):
        return answer == problem.answer
"""
TOML = """
name = "desk"
[model]
base = "base"
[environment]
path = "environment.py:Desk"
[problems]
max_train = 6
max_heldout = 4
"""
ASKED = ("my parcel is late and the courier", "refund the money for order", "cannot log in to")


def trace(k: int) -> Trace:
    model = ModelCall(
        input=(say("user", f"{ASKED[k % 3]} {' '.join(f'x{k}y{j}' for j in range(5))}"),),
        choices=(Choice(message=say("assistant", "a"), finish_reason="stop"),),
        deployment="desk-v0",
    )
    span = Span(id=f"s{k}", kind="model", start=(k + 1) * 10**9, call=model)
    return Trace(id=f"t{k}", project="desk", source="gateway", external_id=f"{k}", spans=(span,),
                 origin="production", user=f"u{k}")  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "environment.py").write_text(ENVIRONMENT)
    (folder / "flywheel.toml").write_text(TOML)
    return load_project(folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    place = Home(tmp_path / "home")
    place.root.mkdir()
    said = [
        Feedback(project="desk", target=f"t{k}", kind="demonstration", value="ab"[k % 2])
        for k in range(48)
    ]
    Inbox(place).append([*map(trace, range(48)), *said])
    return place


def test_traffic_is_mined_picked_stored_and_shown(home: Home, project: Project) -> None:
    told = mine_traffic(home, project)
    assert told["traces"] == told["problems"] == 48 and told["without_answer"] == 0
    assert told["picked"] == {"train": 6, "heldout": 4}
    assert sum(one["picked"] for one in told["clusters"]) == 10
    assert {one["pass_rate"] for one in told["clusters"]} == {None}
    first = stored(home, project)
    assert len(first) == 48 and sum("pick" in one.attributes for one in first) == 10

    rated = [
        Grade(trace_id=one.trace_id or "", reward="correct", value=float(at % 2), grader="g",
              problem_id=one.id, at=1)
        for at, one in enumerate(first)
    ]  # fmt: skip
    Inbox(home).append(rated)
    again = mine_traffic(home, project, limit=5)
    assert again["picked"] == {"train": 3, "heldout": 2}
    assert sum(one["graded"] for one in again["clusters"]) == 48
    later = {one.id: one for one in problems(home, "desk")}
    assert {one.id: one.split for one in first} == {id: one.split for id, one in later.items()}
    assert {one.attributes["difficulty"] for one in later.values()} == {0.0, 1.0}


@pytest.mark.slow
def test_the_commands_print_what_was_mined(home: Home, project: Project) -> None:
    folder, place = project.folder, home.root
    mined = call("problems", "mine", folder, "--since", "1970-01-01T00:00:25", home=place)
    assert mined.code == 0 and "24 problems" in mined.out and "█" in mined.out
    listed = call("problems", "list", folder, "--limit", 3, home=place)
    assert listed.code == 0 and "untried" in listed.out and "45 more" in listed.out
    one = call("problems", "list", folder, "--json", "--split", "heldout", home=place).object()
    assert 0 < one["count"] < 48 and one["problems"][0]["pick"] == 0
    shown = call("problems", "show", one["problems"][0]["id"][:10], home=place)
    assert shown.code == 0 and "--- user" in shown.out and "answer" in shown.out


@pytest.mark.slow
def test_a_turn_keeps_what_was_found_out_and_takes_the_picks_first(
    home: Home, project: Project
) -> None:
    from storage.snapshots import snapshot
    from tasks.mine import held_out, mined

    mine_traffic(home, project)
    taken = mined(project, snapshot(home, "desk").sequence)
    picks = {one.id for one in taken if "pick" in one.attributes and one.split == "heldout"}
    assert len(picks) == 4 and set(held_out(project, taken)) == picks
    plain = [msgspec.structs.replace(one, attributes={}) for one in taken]
    assert set(held_out(project, plain)) != picks


def test_who_said_no_and_what_is_over_poses_no_problem(home: Home, project: Project) -> None:
    from tasks.mine import mined

    kept = msgspec.structs.replace(trace(2), consent="granted", expires=9)
    Inbox(home).append([
        msgspec.structs.replace(trace(0), consent="denied"),
        msgspec.structs.replace(trace(1), expires=7),
        kept,
    ])  # fmt: skip
    commit(home)
    everything = 1 << 40

    def posed(of: Project, at: int) -> set[str | None]:
        return {one.trace_id for one in mined(of, everything, at)}

    assert not {"t0", "t1"} & posed(project, 8) and len(posed(project, 8)) == 46
    assert len(posed(project, 6)) == 47 and len(posed(project, 9)) == 45
    with (project.folder / "flywheel.toml").open("a") as file:
        file.write('[retention]\nconsent = "granted"\n')
    assert posed(load_project(project.folder), 8) == {"t2"}


def test_an_empty_home_and_bad_words_are_told(home: Home, project: Project) -> None:
    for segment in Inbox(home).pending():
        segment.unlink()
    commit(home)
    told = mine_traffic(home, project)
    assert told["problems"] == 0 and told["clusters"] == []
    with pytest.raises(UsageError, match="no problem has this id"):
        found(home, "abcdef")
    with pytest.raises(UsageError, match="is no time"):
        moment_of("yesterday")
    assert moment_of("1970-01-02") == 86_400 * 10**9
    assert limits(project, 10) == {"train": 6, "heldout": 4}


def test_where_nothing_is_picked_it_says_what_to_do(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "quiet"))
    (tmp_path / "quiet").mkdir()
    Inbox(Home(tmp_path / "quiet")).append([trace(k) for k in range(3)])
    said = CliRunner().invoke(flywheel, ["problems", "mine", str(project.folder)])
    assert said.exit_code == 0, said.exception
    assert "picked 0 for training, 0 for evaluation\n  only problems" in said.output
    assert "kind `demonstration`" in said.output and "@reward(truth=False)" in said.output
