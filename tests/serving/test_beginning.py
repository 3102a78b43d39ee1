"""Who answers first, by the project's file: until a promotion, and in the ledger whatever dies."""

import logging
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel import failpoints
from flywheel.errors import MissingPart
from flywheel.home import Home
from flywheel.lineage import Decision
from flywheel.project import Project
from serving import routing
from serving.beginning import put_first
from serving.provider_keys import key_of, warn_of_keys
from serving.reconcile import settle
from serving.rerouting import set_shadow
from serving.routing import ProjectRoute, base_deployment, external_deployment
from storage.committer import commit
from storage.queries import records

VENDOR = external_deployment("support", "vendor", "base")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    return home


def project(first: str | None = None) -> Project:
    said = {"name": "support", "model": {"base": "base"}, "environment": {"path": "e.py:E"}}
    vendor = {"url": "http://127.0.0.1:9/v1", "model": "gpt-9", "key_env": "VENDORS_KEY"}
    of = {"serving": {"first": first}, "providers": {"vendor": vendor}}
    return Project.model_validate({**said, **of})


def now(home: Home) -> ProjectRoute:
    return routing.read(home).projects["support"]


def decisions(home: Home) -> list[Decision]:
    commit(home)
    return list(records(home, "decision"))


def test_the_file_says_who_answers_until_something_is_promoted(home: Home) -> None:
    put_first(home, project(), "base")
    assert now(home).champion == base_deployment("support", "base") and not decisions(home)
    for _ in range(2):
        put_first(home, project("vendor"), "base")
    assert (now(home).champion, now(home).previous) == (VENDOR, None)
    [decision] = decisions(home)
    told = (decision.outcome, decision.deployment, decision.replaced, decision.by)
    assert told == ("routed", "support-vendor", "support-v0", "flywheel serve")
    assert {one.name for one in records(home, "deployment")} == {"support-v0", "support-vendor"}
    promoted = msgspec.structs.replace(now(home), previous=VENDOR)
    routing.replace(home, routing.Routing(version=2, projects={"support": promoted}))
    put_first(home, project(), "base")
    assert now(home) == promoted


def test_another_base_model_holds_from_the_next_start_on(home: Home) -> None:
    put_first(home, project(), "base")
    put_first(home, project(), "larger")
    assert (now(home).base_model, now(home).champion.base_model) == ("larger", "larger")
    assert len(decisions(home)) == 1


def test_who_becomes_the_first_is_asked_no_copies_any_more(home: Home) -> None:
    put_first(home, project(), "base")
    why: Any = {"engine": None, "verify": dict, "by": "ann", "reason": "a look"}
    set_shadow(home, VENDOR, 0.5, **why)
    put_first(home, project("vendor"), "base")
    assert (now(home).shadow, now(home).shadow_share) == (None, 0.0)


@pytest.mark.parametrize("step", ["intent", "routing", "decision"])
@pytest.mark.parametrize("again", ["the start", "what puts in line"])
def test_a_start_that_was_killed_there_leaves_one_decision(
    home: Home, step: str, again: str
) -> None:
    put_first(home, project(), "base")

    def start() -> None:
        failpoints.arm(f"promotion.after_{step}")
        put_first(home, project("vendor"), "base")

    process = multiprocessing.get_context("fork").Process(target=start)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    happened = step != "intent" or again == "the start"
    if again == "the start":
        put_first(home, project("vendor"), "base")
    settle(home, "support", None, None)
    assert (now(home).champion == VENDOR) == happened
    [decision] = decisions(home)
    assert decision.outcome == ("routed" if happened else "abandoned")
    assert decision.replaced == ("support-v0" if happened else None)


def test_a_key_that_is_not_there_is_told_by_its_name_and_never_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = project("vendor")
    monkeypatch.setenv("VENDORS_KEY", "two\nlines")
    with pytest.raises(MissingPart, match="a line break") as told:
        key_of("vendor", known.providers["vendor"])
    assert "lines" not in str(told.value)
    monkeypatch.delenv("VENDORS_KEY")
    with caplog.at_level(logging.WARNING, "flywheel.server"):
        warn_of_keys([known])
    [said] = caplog.messages
    assert "the provider vendor is looked for in VENDORS_KEY, which is not set" in said
