"""Shadow and fallbacks are changed: the route, the engine, the ledger, and the command."""

import json
import multiprocessing
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.commands.route_ import command
from flywheel import failpoints
from flywheel.errors import Refused, UsageError
from flywheel.home import Home
from flywheel.lineage import Decision, Deployment
from flywheel.serving_section import ServingSection
from serving import routing
from serving.fallbacks import in_order
from serving.keeper import adapters_of
from serving.promotion import rollback
from serving.protocol import replace_route, with_champion
from serving.reconcile import settle
from serving.rerouting import end_shadow, set_fallbacks, set_shadow
from serving.routing import external_deployment
from storage.committer import commit
from storage.queries import records
from tests.serving.running import route
from tests.serving.scripted_adapters import ScriptedEngine, an_adapter

BY: Any = {"by": "ann", "reason": "a look"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    route(home)
    yield home


@pytest.fixture
def engine(tmp_path: Path) -> ScriptedEngine:
    return ScriptedEngine(tmp_path / "engine")


def version(home: Home, number: int) -> Deployment:
    return Deployment(
        name=f"support-v{number}",
        project="support",
        version=number,
        base_model="base",
        adapter=str(an_adapter(home, f"r{number}").relative_to(home.root)),
    )


def decisions(home: Home) -> list[Decision]:
    commit(home)
    return [one for one in records(home, "decision") if one.outcome == "routed"]


def test_a_version_is_loaded_checked_and_stays_loaded_as_a_shadow(
    home: Home, engine: ScriptedEngine
) -> None:
    three = version(home, 3)
    said = {"largest": 0.0}
    done = set_shadow(home, three, 0.1, engine=engine, verify=lambda: said, **BY)
    assert (done.shadow, done.shadow_share) == (three, 0.1) and engine.models() == ["support-v3"]
    assert list(adapters_of(home, frozenset({"support"}))) == ["support-v3"]
    [decision] = decisions(home)
    assert decision.by == "ann" and decision.evidence == {"serving": said, "share": 0.1}
    assert "support-v3 gets a copy of 10.0%" in decision.reason
    set_shadow(home, version(home, 4), 1.0, engine=engine, verify=dict, **BY)
    assert engine.models() == ["support-v4"], "what it replaced goes"
    assert end_shadow(home, "support", engine=engine, **BY).shadow is None
    assert engine.models() == [] and len(decisions(home)) == 3


def test_one_that_the_serving_gate_refuses_changes_nothing(
    home: Home, engine: ScriptedEngine
) -> None:
    def refuses() -> dict[str, Any]:
        raise Refused("not what was trained")

    before = routing.read(home)
    with pytest.raises(Refused, match="not what was trained"):
        set_shadow(home, version(home, 3), 0.1, engine=engine, verify=refuses, **BY)
    assert routing.read(home) == before and engine.models() == []
    commit(home)
    (refused,) = records(home, "decision")
    assert (refused.outcome, refused.gate, refused.deployment) == (
        "refused", "serving", "support-v3",
    )  # fmt: skip


@pytest.mark.parametrize("step", ["intent", "load", "check", "routing", "decision"])
def test_a_change_that_was_killed_is_put_in_line_and_decided_once(
    home: Home, engine: ScriptedEngine, step: str
) -> None:
    three = version(home, 3)

    def change() -> None:
        failpoints.arm(f"promotion.after_{step}")
        set_shadow(home, three, 0.5, engine=engine, verify=dict, **BY)

    process = multiprocessing.get_context("fork").Process(target=change)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    settle(home, "support", None, engine)
    happened = step in ("routing", "decision")
    assert (routing.read(home).projects["support"].shadow is not None) == happened
    assert engine.models() == (["support-v3"] if happened else [])
    settle(home, "support", None, engine)
    commit(home)
    (told,) = records(home, "decision")
    assert (told.outcome, told.deployment) == ("routed" if happened else "abandoned", "support-v3")


def test_a_provider_needs_no_engine_and_odd_shares_are_told(home: Home) -> None:
    other = external_deployment("support", "openai", "base")
    assert set_shadow(home, other, 1.0, engine=None, verify=dict, **BY).shadow == other
    for share in (0.0, 1.1, float("nan")):
        with pytest.raises(UsageError, match="share"):
            set_shadow(home, other, share, engine=None, verify=dict, **BY)
    with pytest.raises(UsageError, match="champion"):
        base = routing.base_deployment("support", "base")
        set_shadow(home, base, 0.5, engine=None, verify=dict, **BY)
    set_fallbacks(home, "support", ("openai",), **BY)
    assert routing.read(home).projects["support"].fallbacks == ("openai",)


def test_the_command_shows_and_changes(
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
    file = tmp_path / "flywheel.toml"
    file.write_text(
        'name = "support"\n[model]\nbase = "base"\n[environment]\npath = "e.py:E"\n'
        '[serving]\nfallbacks = ["openai"]\n'
        '[providers.openai]\nurl = "http://127.0.0.1:9/v1"\nmodel = "gpt-9"\n'
    )

    def said(*arguments: str) -> str:
        found = CliRunner().invoke(command, [str(tmp_path), *arguments])
        if found.exception:
            raise found.exception
        return found.output

    assert "where it fails: support-openai (the provider openai)" in said("--show")
    shown = said("--shadow", "openai:10%", "--by", "ann")
    assert "support-openai gets a copy of 10.0%" in shown
    said("--fallback", "base", "--json")
    kept = json.loads(capfd.readouterr().out)
    assert kept["fallbacks"] == ["base"]
    assert "copy" not in said("--shadow", "off", "--fallback", "off")
    assert len(decisions(home)) == 4 and "ann" in {one.by for one in decisions(home)}
    with pytest.raises(UsageError, match=r"nosuch: .* there are: none; providers: openai"):
        said("--shadow", "nosuch:50%")
    text = file.read_text().replace('["openai"]', '["previous"]')
    file.write_text(text)
    assert "not previous, which is named: nothing was replaced yet" in said("--show")
    for wrong in (("--shadow", "openai"), ("--shadow", "openai:0"), ("--fallback", "nobody")):
        with pytest.raises(UsageError):
            said(*wrong)


def test_previous_is_whom_the_champion_replaced_and_never_whom_a_rollback_took_out(
    home: Home, engine: ScriptedEngine
) -> None:
    set_fallbacks(home, "support", ("previous", "openai"), **BY)

    def stand_in() -> list[str]:
        route, section = routing.read(home).projects["support"], ServingSection()
        return [one.name for one in in_order(route.champion, route, section)[1:]]

    def promoted(number: int) -> None:
        seen = routing.read(home).projects["support"]
        replace_route(home, seen, with_champion(seen, version(home, number)))

    def back() -> None:
        rollback(home, "support", engine=engine, registry=None, **BY)

    assert stand_in() == ["support-openai"], "nothing was replaced yet"
    for number in (1, 2):
        promoted(number)
        assert stand_in() == [f"support-v{number - 1}", "support-openai"]
    back()
    assert stand_in() == ["support-openai"], "nor does version 2, which was taken out"
    back()
    assert stand_in() == ["support-openai"], "the one that came back for it was taken out too"
    promoted(3)
    assert stand_in() == ["support-v2", "support-openai"]
