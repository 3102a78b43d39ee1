"""Deployments: evidence, the ledger, and actions that happen once, by who may do them."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from streamlit.testing.v1 import AppTest

from app.actions import actions
from app.views.deployments_charts import timeline
from app.views.deployments_data import command, decided, ledger_rows, reigns, versions
from app.views.ledger_data import ledger, turns
from flywheel.home import Home
from flywheel.known import remember
from flywheel.project import load_project
from storage.glance import glance
from tests.app.conftest import Promoted
from tests.app.seeing import DAY, HOSTILE, NOW, PROJECT, deployed, page, stored, two_turns, words
from tests.app.seeing import decided as a_decision


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def asking(shown: AppTest, label: str) -> Any:
    """The button that asks, by its label."""
    return next(one for one in shown.button if one.label == label)


def yes(shown: AppTest) -> Any:
    return next(one for one in shown.button if one.label.startswith("Yes, "))


def test_an_empty_project_is_told_what_serving_brings(home: Home) -> None:
    home.root.mkdir()
    assert "flywheel serve FOLDER" in words(page(home, "deployments"))


def test_parts_evidence_and_ledger_are_shown(home: Home) -> None:
    two_turns(home)
    shown = page(home, "deployments", folder=home.root)
    told = words(shown)
    assert "Champion · 100% of requests" in told and "Previous" in told
    assert "mean reward 0.444 (0.276 to 0.627) over 27 graded" in told
    assert "shop-v2,waiting,2,shop-v1,0.5,0.75,0.25,0.1,0.4,4" in told
    assert "own reward" in told and "waiting, by flywheel turn" in told
    assert shown.selectbox(key="promote_version").value == "shop-v2"
    assert "6 of 6 decisions" in told
    shown.text_input(key="ledger_find").set_value("WAITING").run()
    assert "0 of 6" in words(shown), "it looks in reasons and names"
    shown.text_input(key="ledger_find").set_value("").run()
    next(one for one in shown.button_group if one.key == "ledger_outcomes").set_value(
        ["promoted"]
    ).run()
    assert "1 of 6" in words(shown)


def test_a_canary_shows_its_interval_its_guard_rails_and_what_they_say(home: Home) -> None:
    from flywheel.records import Grade
    from serving import routing
    from serving.rails import Rails
    from serving.watch import Watched, path_of
    from tests.storage.test_released import drawn

    two_turns(home)
    now = routing.read(home)
    route = msgspec.structs.replace(
        now.projects[PROJECT], challenger=deployed(2), share=0.2, since=time.time_ns() - 10**9
    )
    routing.replace(home, msgspec.structs.replace(now, projects={PROJECT: route}))
    made: list[Any] = []
    for number in range(60):
        arm, at = number % 5 == 0, time.time_ns()
        name = f"{PROJECT}-v{2 if arm else 1}"
        trace = drawn(f"c{number}", name, 0.2 if arm else 0.8, at=at, project=PROJECT)
        made += [trace, Grade(trace_id=trace.id, reward="r", value=float(not arm), at=at)]
    stored(home, made)
    rails = Rails()
    rails.rates["errors"].challenger.n, rails.rates["errors"].challenger.x = 7, 3
    kept = Watched(f"{PROJECT}-v1", f"{PROJECT}-v2", route.since, rails)
    path_of(home, PROJECT).parent.mkdir()
    path_of(home, PROJECT).write_bytes(msgspec.json.encode(kept))
    shown = page(home, "deployments", folder=home.root)
    told = words(shown)
    assert "Canary of shop-v2" in told and "Rolled back at the next grading" in told
    assert "Mean reward 0.000 over 12 conversations against 1.000 over 48 of shop-v1" in told
    assert "errors,3 of 7,0 of 0,2 points more" in told
    assert not shown.exception


def test_text_from_outside_is_never_markup(home: Home) -> None:
    two_turns(home)
    shown = page(home, "deployments", folder=home.root)
    for one in [*shown.markdown, *shown.caption, *shown.info]:
        assert "<script>" not in one.value and "**bold**" not in one.value, one.value
        assert not one.proto.allow_html


@pytest.mark.slow
def test_a_confirmation_says_what_will_happen_and_acts_once(home: Home, tmp_path: Path) -> None:
    two_turns(home)
    gone = tmp_path / "no-project-here"
    shown = page(home, "deployments", folder=gone)
    shown.text_input(key="rollback_reason:shop-v1").set_value("--json").run()
    asking(shown, "Roll back to shop-v0").click().run()
    assert "shop-v0 answers the next request instead of shop-v1" in words(shown)
    assert actions(home) == [], "nothing is done before a yes"
    state = "confirm:rollback:shop-v1:shop-v0:token"
    token = shown.session_state[state]
    yes(shown).click().run()
    (one,) = actions(home)
    assert (one.begun.by, one.begun.token) == ("ann", token)
    assert one.begun.arguments == (
        "rollback", str(gone), "--reason=--json", "--by=ann",
    ), "a value is never taken for an option"  # fmt: skip

    shown.session_state[state] = token  # the second click of a double click
    shown.run()
    yes(shown).click().run()
    shown.run()
    assert [one.begun.token for one in actions(home)] == [token]
    ended = outcome(home, token)
    assert ended.state == "failed" and "flywheel.toml" in ended.words
    assert "flywheel.toml" in words(page(home, "deployments", folder=gone))


def outcome(home: Home, token: str, within_s: float = 120.0) -> Any:
    until = time.monotonic() + within_s
    while True:
        one = next(one for one in actions(home) if one.begun.token == token)
        if one.state != "running":
            return one
        assert time.monotonic() < until, one.output and one.output.read_text()
        time.sleep(0.1)


def rolled_back(home: Home) -> None:
    from serving.routing import ProjectRoute, Routing, read, replace

    two_turns(home, last="refused")
    stored(home, [a_decision("rolled_back", "person", "it was rude", NOW + 3 * DAY, by="ann",
                             deployment="shop-v0", replaced="shop-v1")])  # fmt: skip
    route = ProjectRoute(project=PROJECT, base_model="base", champion=deployed(0),
                         previous=deployed(1))  # fmt: skip
    replace(home, Routing(version=read(home).version, projects={PROJECT: route}))


def test_of_a_rollback_each_side_says_its_own_and_by_whom(home: Home) -> None:
    rolled_back(home)
    known = ledger(home, PROJECT)
    said = {one.name: decided(one) for one in versions(home, PROJECT, known, turns(known), None)}
    assert said["shop-v0"] == "took over by rollback of shop-v1, by ann"
    assert said["shop-v1"] == "rolled back by ann"
    assert said["shop-v2"] == "refused by flywheel turn"
    told = words(page(home, "deployments", folder=home.root))
    assert "Took over by rollback of shop-v1, by ann: it was rude" in told
    assert "Rolled back by ann: it was rude" in told
    assert "took over by rollback of shop-v1, by ann" in words(page(home, "overview"))


def test_who_answered_when_is_told_in_utc_by_a_clock_of_24_hours(home: Home) -> None:
    rolled_back(home)
    drawn = timeline(reigns(ledger(home, PROJECT)), NOW + 4 * DAY).to_dict()
    along = drawn["encoding"]["x"]
    assert along["scale"] == {"type": "utc"}
    assert "'%H:%M'" in along["axis"]["labelExpr"] and "%I" not in str(drawn)
    assert {one["how"] for one in drawn["data"]["values"]} == {"promoted", "by rollback"}
    assert drawn["data"]["values"][-1]["ended"] == "still answers"


@pytest.mark.parametrize("role", ["viewer", "reviewer"])
def test_who_may_not_promote_sees_the_buttons_and_cannot_press_them(home: Home, role: str) -> None:
    two_turns(home)
    shown = page(home, "deployments", folder=home.root, role=role)
    for label in ("Roll back to shop-v0", "Promote shop-v2", "Let shop-v2 answer a share"):
        assert asking(shown, label).disabled


def test_a_role_taken_away_while_the_question_stood_refuses(home: Home) -> None:
    two_turns(home)
    shown = page(home, "deployments", folder=home.root)
    asking(shown, "Promote shop-v2").click().run()
    (home.root / "people.toml").write_text('[people]\nann = "viewer"\n')
    yes(shown).click().run()
    (one,) = actions(home)
    assert one.state == "refused" and "needs a promoter" in one.words
    assert one.begun.arguments == (), "no command was started"


def test_a_project_whose_folder_is_not_known_says_what_to_do(home: Home) -> None:
    two_turns(home)
    told = words(page(home, "deployments"))
    assert "does not know where the project's folder is" in told


def test_versions_reigns_and_filters(home: Home) -> None:
    two_turns(home)
    known = ledger(home, PROJECT)
    found = versions(home, PROJECT, known, turns(known), glance(home, PROJECT))
    assert [(one.name, one.part) for one in found] == [
        ("shop-v2", "waiting"), ("shop-v1", "champion"), ("shop-v0", "previous"),
    ]  # fmt: skip
    assert found[1].share == 1.0 and found[1].traffic and found[1].traffic.traces == 30
    (reign,) = reigns(known)
    assert (reign.deployment, reign.end) == ("shop-v1", None)
    assert [one.outcome for one in ledger_rows(known, ["promoted"])] == ["promoted"]
    assert len(ledger_rows(known, (), "BETTER")) == 3
    assert ledger_rows(known, ["passed"], HOSTILE)[0].gate == "learning"
    assert command("promote", "/p", "-x", " ", version="2") == [
        "promote", "/p", "--version=2", "--by=-x",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_roll_back_from_the_page_happens_once_and_is_shown(
    promoted: Promoted, promoted_home: Path
) -> None:
    from serving.routing import read

    home = Home(promoted_home)
    remember(home, load_project(promoted.project))
    before = read(home).version
    shown = page(home, "deployments", folder=promoted.project, project="sorting")
    shown.text_input(key="rollback_reason:sorting-v1").set_value("it was rude").run()
    asking(shown, "Roll back to sorting-v0").click().run()
    token = shown.session_state["confirm:rollback:sorting-v1:sorting-v0:token"]
    yes(shown).click().run()
    assert "running" in words(shown) or outcome(home, token).state == "done"
    ended = outcome(home, token)
    assert ended.state == "done", ended.words
    assert read(home).projects["sorting"].champion.name == "sorting-v0"
    assert read(home).version == before + 1
    shown.run()
    told = words(shown)
    assert "Champion" in told and "it was rude" in told and "done" in told
    last = ledger(home, "sorting").decisions[-1]
    assert (last.outcome, last.by, last.reason) == ("rolled_back", "ann", "it was rude")
