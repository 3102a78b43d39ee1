"""Roles come from the file, actions happen once, and each is recorded with who did it."""

import json
import os
import time
from pathlib import Path

import pytest

from app.actions import act_once, actions, may, note, start_command
from app.people import Person, allowed, person_of, proven_name
from flywheel import once
from flywheel.errors import Busy, Refused, UsageError
from flywheel.home import Home

ANN = Person("ann", "promoter")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path / "home")
    place.root.mkdir()
    return place


def test_without_a_file_only_a_local_name_may_do_everything(home: Home) -> None:
    assert person_of(home, "ann", local=True).role == "promoter"
    assert person_of(home, "ann@example.org", local=False).role == "viewer"


def test_the_file_gives_roles_and_the_rest_its_default(home: Home) -> None:
    (home.root / "people.toml").write_text(
        'default = "reviewer"\n[people]\nann = "promoter"\n"Bob@Example.org" = "viewer"\n'
    )
    assert person_of(home, "Ann", local=True).role == "promoter"
    assert person_of(home, "bob@example.org", local=False).role == "viewer"
    assert person_of(home, "zoe", local=True).role == "reviewer"
    (home.root / "people.toml").write_text('[people]\nann = "promoter"\n')
    assert person_of(home, "zoe", local=True).role == "viewer"


@pytest.mark.parametrize("text", ['[people]\nann = "boss"', "people = 3", "nonsense", "x = 1",
                                  'default = "promotr"'])  # fmt: skip
def test_a_file_that_does_not_fit_gives_nobody_a_role(home: Home, text: str) -> None:
    (home.root / "people.toml").write_text(text)
    with pytest.raises(UsageError, match=r"people\.toml"):
        person_of(home, "ann", local=True)


def test_a_display_name_or_a_doubted_address_gives_no_role(home: Home) -> None:
    (home.root / "people.toml").write_text('[people]\nann = "promoter"\n"a@x.org" = "reviewer"\n')

    def role(**user: object) -> str:
        return person_of(home, proven_name(user), local=False).role

    assert role(email="a@x.org", email_verified=True, sub="1") == "reviewer"
    assert role(email="a@x.org", email_verified="true", sub="1") == "reviewer"
    for doubt in (False, "false", "False", "yes", 0, 1, "", None):
        assert role(email="a@x.org", email_verified=doubt, sub="1") == "viewer", doubt
    assert role(email="a@x.org", sub="1") == "viewer"
    assert role(name="ann", sub="1") == "viewer"
    for nobody in ({}, {"sub": ""}, {"sub": None}, {"name": "ann", "email": "a@x.org"}):
        with pytest.raises(UsageError, match="proves no name"):
            role(**nobody)


def test_what_a_sign_in_calls_a_person_is_no_name_and_no_address(home: Home) -> None:
    (home.root / "people.toml").write_text(
        '[people]\nann = "promoter"\n"a@x.org" = "promoter"\n"sub:Ab1" = "reviewer"\n'
    )

    def role(**user: object) -> str:
        return person_of(home, proven_name(user), local=False).role

    assert proven_name({"sub": "Ab1"}) == "sub:Ab1" and role(sub="Ab1") == "reviewer"
    assert role(sub="aB1") == "viewer", "an id is exact"
    assert role(sub="ann") == "viewer" and role(sub="a@x.org") == "viewer"
    assert role(email="ann", email_verified=True, sub="2") == "viewer", "that is no address"
    assert role(email="sub:Ab1", email_verified=True, sub="2") == "viewer"
    assert role(email="SUB:Ab1@x", email_verified=True, sub="2") == "viewer"


@pytest.mark.parametrize(("named", "other"), [("strasse", "straße"), ("kim", "\u212aim"),
                                              ("iris", "\u0130ris"), ("sub:k", "sub:K"),
                                              ("é", "É"), ("ﬁn", "fin")])  # fmt: skip
def test_names_that_only_look_alike_are_other_people(home: Home, named: str, other: str) -> None:
    (home.root / "people.toml").write_text(f'[people]\n"{named}" = "promoter"\n')
    assert person_of(home, named, local=False).role == "promoter"
    assert person_of(home, other, local=False).role == "viewer"
    (home.root / "people.toml").write_text(
        f'[people]\n"{named}" = "promoter"\n"{other}" = "reviewer"\n'
    )
    assert person_of(home, other, local=False).role == "reviewer"


@pytest.mark.parametrize(("one", "other"), [("Ann@x.org", "ann@X.org"), ("sub:1", "SUB:1")])
def test_one_person_named_twice_gives_nobody_a_role(home: Home, one: str, other: str) -> None:
    (home.root / "people.toml").write_text(
        f'[people]\n"{one}" = "promoter"\n"{other}" = "viewer"\n'
    )
    with pytest.raises(UsageError, match="the same person"):
        person_of(home, one, local=False)


def test_each_role_may_what_the_ones_before_may() -> None:
    each = [Person("x", role) for role in ("viewer", "reviewer", "promoter")]  # type: ignore[arg-type]
    roles = ("viewer", "reviewer", "promoter")
    assert [[allowed(one, role) for role in roles] for one in each] == [
        [True, False, False], [True, True, False], [True, True, True],
    ]  # fmt: skip


def test_a_role_that_was_taken_away_is_refused_where_it_acts(home: Home) -> None:
    assert may(home, ANN, "promoter", local=True).role == "promoter"
    (home.root / "people.toml").write_text('[people]\nann = "reviewer"\n')
    with pytest.raises(Refused, match="needs a promoter"):
        may(home, ANN, "promoter", local=True)


def test_an_action_happens_once_and_is_recorded(home: Home) -> None:
    token, done = once.issue(), []
    first = act_once(home, ANN, token, "Press", lambda: done.append(1) or "pressed", "shop")
    assert first is not None and (first.state, first.words) == ("done", "pressed")
    assert act_once(home, ANN, token, "Press", lambda: done.append(1) or "again") is None
    assert done == [1]
    (one,) = actions(home)
    assert (one.begun.by, one.begun.what, one.begun.project, one.state) == (
        "ann", "Press", "shop", "done",
    )  # fmt: skip


def test_what_went_wrong_is_its_outcome(home: Home) -> None:
    def refuse() -> str:
        raise Refused("the gate said no")

    def busy() -> str:
        raise Busy("another one runs")

    def broken() -> str:
        raise ZeroDivisionError("oops")

    ended = act_once(home, ANN, once.issue(), "a", refuse)
    assert ended is not None and (ended.state, ended.words) == ("refused", "the gate said no")
    ended = act_once(home, ANN, once.issue(), "b", busy)
    assert ended is not None and ended.state == "failed"
    with pytest.raises(ZeroDivisionError):
        act_once(home, ANN, once.issue(), "c", broken)
    assert {one.begun.what: one.state for one in actions(home)} == {
        "a": "refused", "b": "failed", "c": "failed",
    }  # fmt: skip


def test_one_that_died_is_told_from_one_that_goes_on(home: Home) -> None:
    token = once.issue()
    ready, go = os.pipe()
    if (child := os.fork()) == 0:

        def hang() -> str:
            os.write(go, b"x")
            time.sleep(60)
            return ""

        act_once(home, ANN, token, "Hang", hang)
        os._exit(0)
    os.read(ready, 1)
    assert actions(home)[0].state == "running"
    os.kill(child, 9)
    os.waitpid(child, 0)
    path = home.actions / token / "action.json"
    begun = json.loads(path.read_bytes())
    path.write_bytes(json.dumps({**begun, "at": begun["at"] - 60 * 10**9}).encode())
    assert actions(home)[0].state == "lost"


def test_a_command_is_carried_out_beside_the_page(home: Home) -> None:
    token = once.issue()
    ended = act_once(home, ANN, token, "Look", lambda: start_command(home, ANN, ["lineage", "zz"]))
    assert ended is not None and ended.words == "started: flywheel lineage zz"
    assert start_command(home, ANN, ["status"], other := once.issue()).startswith("started")
    assert "before" in start_command(home, ANN, ["status"], other)
    until = time.monotonic() + 60
    while any(one.state == "running" for one in actions(home)) and time.monotonic() < until:
        time.sleep(0.1)
    states = {one.begun.arguments[0]: one for one in actions(home)}
    assert states["status"].state == "done" and states["lineage"].state == "failed"
    assert states["lineage"].words and states["lineage"].begun.what == "Look"
    assert states["status"].output is not None and "home" in states["status"].output.read_text()


def test_notes_say_who_and_what(home: Home) -> None:
    note(home, ANN, "accepted x", project="shop")
    line = json.loads((home.actions / "notes.jsonl").read_text())
    assert (line["by"], line["role"], line["what"], line["project"]) == (
        "ann", "promoter", "accepted x", "shop",
    )  # fmt: skip
