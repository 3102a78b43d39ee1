"""A release's whole way by the commands: a turn's candidate answers a share, people say what is
right, and its reward alone promotes it; where they come to want the opposite, it is taken out. One
that is asked copies first answers a share once enough of them are graded."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from flywheel.home import Home
from serving.routing import canary_of, read
from storage.queries import records
from tasks.promote import let_in
from tasks.turns import Turn
from tests.app.calling import Said, call
from tests.app.test_commands import serving
from tests.promoted import Promoted

SECTIONS = """
[problems]
max_train = 48
max_heldout = 32
[release]
canary = 0.5
min_requests = 10
confidence = 0.8
"""
ENOUGH = 4
"""Batches of customers after which a difference of forty points must be seen."""


@pytest.fixture
def project(promoted: Promoted, tmp_path: Path) -> Path:
    """The promoted project, whose candidates go through a canary now."""
    shutil.copytree(promoted.project, tmp_path / "sorting")
    file = tmp_path / "sorting" / "flywheel.toml"
    text = file.read_text().replace('"base"', f'"{promoted.project / "base"}"')
    text = text.replace('accept = "better"', 'accept = "better"\nconfidence = 0.6')
    file.write_text(text + SECTIONS)
    return tmp_path / "sorting"


@pytest.mark.slow
def test_a_candidate_earns_its_place_and_loses_it(
    project: Path, promoted_home: Path, traffic: ModuleType, prefect_url: str
) -> None:
    home = promoted_home

    def said(name: str, *more: object) -> Said:
        found = call(name, project, *more, home=home, PREFECT_API_URL=prefect_url)
        assert found.code == 0, found
        return found

    assert "sorting-v0" in said("rollback").out
    with serving(project, home) as served:
        turned = said("turn", "--json").object()
        assert (turned["canary"], turned["deployment"]) == (True, "sorting-v0"), turned["reason"]
        up = until_decided(home, project, served.said["url"], traffic, prefect_url, upwards=True)
        assert (up["challenger"], up["decided"]) == ("sorting-v2", "promoted")
        assert up["low"] > 0 and min(up["units"]) >= 10
        assert served.answered_by() == "sorting-v2"

        assert "sorting-v0" in said("rollback").out
        said("release", "--version", "2", "--canary", "50%")
        down = until_decided(home, project, served.said["url"], traffic, prefect_url, upwards=False)
        assert (down["challenger"], down["decided"]) == ("sorting-v2", "rolled_back")
        assert down["high"] < 0 and served.answered_by() == "sorting-v0"
    assert canary_of(Home(home), "sorting") is None


@pytest.mark.slow
def test_a_turns_candidate_is_asked_copies_and_then_answers_its_share(
    project: Path, promoted: Promoted, promoted_home: Path, traffic: ModuleType,
    monkeypatch: pytest.MonkeyPatch, prefect_url: str,
) -> None:  # fmt: skip
    """The turn's step for what has passed its gates, with the candidate of the turn that was."""
    monkeypatch.setenv("FLYWHEEL_HOME", str(promoted_home))
    (project / "flywheel.toml").open("a").write("shadow = 0.5\n")
    assert call("rollback", project, home=promoted_home).code == 0
    home = Home(promoted_home)
    route = read(home).projects["sorting"]
    assert route.previous is not None
    with serving(project, promoted_home) as served:
        turn = Turn(
            run_id=promoted.turned.object()["run_id"], project="sorting", folder=str(project),
            start=route.champion, configuration="c", sequence=1 << 40, snapshot="s",
        )  # fmt: skip
        said = let_in(turn, route.previous, {"reason": "better", "smoke": []})
        assert said["waiting"] and "is asked copies of 50.0%" in said["reason"]
        url = served.said["url"]
        went_on = until_decided(promoted_home, project, url, traffic, prefect_url, upwards=True)
        assert (went_on["says"], went_on["decided"]) == ("canary", "canary")
        assert went_on["pairs"] >= 10
    now = read(home).projects["sorting"]
    assert (now.champion, now.shadow) == (route.champion, None)
    assert canary_of(home, "sorting") == (route.previous, 0.5)
    last = sorted(records(home, "decision", project="sorting"), key=lambda one: one.at)[-2:]
    assert [one.outcome for one in last] == ["routed", "canary"]
    assert went_on["reason"] in last[1].reason


def until_decided(
    home: Path, project: Path, url: str, traffic: ModuleType, prefect_url: str, *, upwards: bool
) -> dict[str, Any]:
    """Customers come in batches, and each batch is graded, until the release is decided."""
    for batch in range(ENOUGH):
        ask_all(url, traffic, seed=100 + batch + ENOUGH * upwards, upwards=upwards)
        graded = call("grade", project, "--json", home=home, PREFECT_API_URL=prefect_url)
        assert graded.code == 0, graded
        found: dict[str, Any] = graded.object()["release"]
        if found["decided"]:
            return found
    raise AssertionError(found)


def ask_all(url: str, traffic: ModuleType, *, seed: int, upwards: bool) -> None:
    asks = traffic.asks(90, seed)
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        for ask in asks:
            messages = [{"role": one.role, "content": one.text} for one in ask.messages]
            answer = client.post(
                "/v1/chat/completions",
                json={
                    "model": "sorting", "messages": messages, "max_tokens": 16, "temperature": 0.7,
                    "metadata": {"conversation_id": ask.conversation},
                },
            )  # fmt: skip
            assert answer.status_code == 200, answer.text
        right = [(one, sorted(one.answer.split(), reverse=not upwards)) for one in asks]
        given = [
            {"conversation_id": one.conversation, "kind": "demonstration", "value": " ".join(so)}
            for one, so in right
        ]
        assert client.post("/v1/feedback", json=given).status_code == 202
